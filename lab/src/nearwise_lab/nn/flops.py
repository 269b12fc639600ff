"""FLOPs of a module's forward pass: torch's counter, with formulas for this package's operators."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from nearwise.functional.tokens import attention_implementation

FlopKind = Literal["linear", "attention", "convolution"]
FLOP_KINDS: tuple[FlopKind, ...] = get_args(FlopKind)


def _knn_attention(query: Any, key: Any, value: Any, k: int, *others: Any, **_: Any) -> int:
    """Products of queries with all keys or candidates, and sums of k values."""
    candidates = others[6]
    n_columns = key[-2] if candidates is None else candidates[1]
    return 2 * math.prod(query[:-1]) * (n_columns * query[-1] + k * value[-1])


def _knn_attention_backward(query: Any, key: Any, value: Any, *others: Any, **_: Any) -> int:
    """Four products per neighbor: gradients of its weight, its value, the query, its key."""
    indices = others[3]
    return 4 * math.prod(indices) * (query[-1] + value[-1])


_ATEN, _OWN = torch.ops.aten, torch.ops.nearwise
# For `FlopCounterMode(custom_mapping=FLOP_FORMULAS)`, which has neither our operators nor the
# dense attention of CPUs.
FLOP_FORMULAS: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: (
        sdpa_flop_count(query, key, value)
    ),
    _OWN.knn_attention: _knn_attention,
    _OWN.knn_attention_backward: _knn_attention_backward,
}
_KINDS: dict[Any, FlopKind] = {
    **dict.fromkeys((_ATEN.mm, _ATEN.addmm), "linear"),
    **dict.fromkeys((_ATEN.convolution, _ATEN._convolution), "convolution"),
}


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one forward pass, by kind, of each module and all inside it.

    `by_module` has them by name ("" for the whole); modules that multiply nothing are missing.
    """

    by_module: Mapping[str, Mapping[str, int]]

    def of(self, name: str = "") -> dict[str, int]:
        """FLOPs by kind of a module and all inside it, such as "blocks.0.attn"; default of all."""
        return {kind: self.by_module.get(name, {}).get(kind, 0) for kind in FLOP_KINDS}

    @property
    def total(self) -> int:
        """FLOPs of all kinds."""
        return sum(self.of().values())


def count_flops(
    module: nn.Module, *inputs: Tensor, training: bool = False, **keywords: Any
) -> FlopCount:
    """Count the floating-point operations of a module's forward pass, by running it.

    Counted by `torch.utils.flop_counter.FlopCounterMode`, as published numbers are: products of
    matrices, attention and convolutions, where a multiply-add is two FLOPs. Biases, norms,
    activations, softmax and the selection of the nearest are left out.

    =========== ===================================================================================
    kind        what is counted
    =========== ===================================================================================
    linear      2 a b c for a product of matrices (a, b) and (b, c), among them "standard"
                convolutions over the k neighbors of a token, with b = k C
    attention   products of queries and keys, and sums of values: 2 D and 2 Dv per pair. Dense
                attention has N M pairs, also under a mask; k-NN attention N M and N K
    convolution 2 per number of the kernel and position of the output
    =========== ===================================================================================

    Parameters
    ----------
    module : Module
        On a CPU; k-NN attention is counted as its compiled implementation computes it.
    *inputs : Tensor
        Of its forward pass, on a CPU. Counts are for this batch.
    training : bool, default=False
        Whether to count as in training: with sampled candidates, and with dropout.
    **keywords
        More arguments of the forward pass.

    Raises
    ------
    ValueError
        If the module or an input does not lie on a CPU.

    Examples
    --------
    >>> layer = nn.Linear(8, 4, bias=False)
    >>> count_flops(layer, torch.randn(3, 8)).total
    192
    """
    devices = {x.device.type for x in (*module.parameters(), *module.buffers(), *inputs)} - {"cpu"}
    if devices:
        raise ValueError(
            f"FLOPs are counted on a CPU; the model or its input lies on "
            f"{', '.join(sorted(devices))}. Move both: counts do not depend on the device."
        )
    modes = {part: part.training for part in module.modules()}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    module.train(training)
    # torch's fused encoder layer is a single operator without a formula.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # The random state stays as it was: counting draws candidates and dropout.
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            attention_implementation("cpu"),
            FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter,
        ):
            module(*inputs, **keywords)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for part, mode in modes.items():
            part.training = mode
    root = type(module).__name__
    counts: dict[str, Counter[str]] = {}
    for name, operators in counter.get_flop_counts().items():
        if f"{name}.".startswith(f"{root}."):
            own = counts[name.removeprefix(root).removeprefix(".")] = Counter()
            for operator, n in operators.items():
                own[_KINDS.get(operator, "attention")] += n
    return FlopCount(counts)
