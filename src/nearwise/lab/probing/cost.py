"""What a fitted probe costs: the numbers it learned, and the operations a query takes."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nearwise.probes.base import Probe


def probe_parameters(probe: Probe) -> int:
    """Count what a fitted probe learned: weights of a linear or neural probe, 0 for plain k-NN."""
    own = getattr(probe, "n_parameters_", None)
    if own is not None:
        return int(own)
    parts = (getattr(probe, "coef_", None), getattr(probe, "intercept_", None))
    return sum(int(part.size) for part in parts if part is not None)


def probe_flops(probe: Probe, X: NDArray[Any]) -> int:
    """Count the floating-point operations of matrix products in one query, a multiply-add as two.

    Parameters
    ----------
    probe : Probe
        Fitted. Exact search is counted as comparing with all remembered rows; heads over the few
        neighbors found are left out.
    X : array of shape (n, D) or (n, L, D)
        Features such as it reads.
    """
    network = getattr(probe, "network_", None)
    if network is not None:
        return _network_flops(network, X[:1])
    spaces = getattr(probe, "spaces_", None)
    if spaces is not None:
        mapped = getattr(probe, "map_", None)
        learned = [] if mapped is None else list(mapped.network.parameters())
        search = sum(2 * space.keys.numel() for space in spaces)
        return int(search + sum(2 * p.numel() for p in learned if p.ndim == 2))
    keys = getattr(probe, "_keys", None)
    return 2 * int(probe_parameters(probe) if keys is None else keys.numel())


def _network_flops(network: nn.Module, X: NDArray[Any]) -> int:
    place = next(network.parameters()).device
    # with gradients torch takes no fused path, whose operations are not counted
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), FlopCounterMode(display=False) as count:
        network.eval()(torch.from_numpy(X).to(place))
    return int(count.get_total_flops())
