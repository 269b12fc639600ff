"""Cost of a fitted probe: learned parameters, and FLOPs per query."""

import copy
from typing import Any

import torch
from numpy.typing import NDArray

from nearwise.probes.base import Probe
from nearwise_lab.nn import count_flops


def probe_parameters(probe: Probe) -> int:
    """Count the learned parameters: weights of a linear or neural probe, 0 for plain k-NN."""
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
        return count_flops(copy.deepcopy(network).cpu(), torch.from_numpy(X[:1])).total
    spaces = getattr(probe, "spaces_", None)
    if spaces is not None:
        mapped = getattr(probe, "map_", None)
        search = sum(2 * space.keys.numel() for space in spaces.values())
        return int(search + (0 if mapped is None else 4 * mapped.axes.size))
    keys = getattr(probe, "_keys", None)
    return 2 * int(probe_parameters(probe) if keys is None else keys.numel())
