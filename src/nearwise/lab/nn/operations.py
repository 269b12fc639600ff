"""Count the operations of a model's forward pass: products, selection, gathers, convolutions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nearwise.functional.tokens import attention_implementation
from nearwise.lab.nn.operation_rules import RULES, Cost, is_free, pointwise_cost
from nearwise.nn.tokens.parts.slots import SlotConvolution

OperationKind = Literal["linear", "attention", "convolution", "selection", "gather", "other"]
OPERATION_KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
# What published numbers of FLOPs count; of these, profilers leave out the convolution.
PRODUCTS: tuple[OperationKind, ...] = ("linear", "attention", "convolution")


@dataclass(frozen=True)
class OperationCount:
    """Operations of one forward pass.

    Attributes
    ----------
    by_module : mapping of str to mapping of str to float
        Operations by kind of each module that did any itself, by its name in the model ("" for
        the model).
    uncounted : tuple of str
        Operators of torch that no rule covers; they count 0.
    """

    by_module: Mapping[str, Mapping[str, float]]
    uncounted: tuple[str, ...] = ()

    def of(self, prefix: str = "") -> dict[str, float]:
        """Operations by kind of a module and all inside it; default of all.

        Parameters
        ----------
        prefix : str
            Name of a module in the model, such as "blocks.0.attn".
        """
        total: dict[str, float] = dict.fromkeys(OPERATION_KINDS, 0.0)
        for name, kinds in self.by_module.items():
            if not prefix or name == prefix or name.startswith(prefix + "."):
                for kind, n in kinds.items():
                    total[kind] += n
        return total

    @property
    def total(self) -> float:
        """Operations of all kinds."""
        return sum(self.of().values())

    @property
    def products(self) -> float:
        """Operations of linear layers, attention and convolutions: what is published as FLOPs."""
        own = self.of()
        return sum(own[kind] for kind in PRODUCTS)


def count_operations(
    module: nn.Module, *inputs: Tensor, training: bool = False, **keywords: Any
) -> OperationCount:
    """Count the operations of a module's forward pass, by running it.

    A multiplication, addition, comparison or elementary function is one operation, and so is the
    number that a gather moves. Copies and views are free.

    ========== ====================================================================================
    kind       what is counted
    ========== ====================================================================================
    linear     2 a b c for a product of matrices (a, b) and (b, c)
    attention  products of queries and keys, and sums of values: 2 D and 2 Dv a pair. Dense
               attention has N M pairs, also under a mask; k-NN attention N M and N K
    convolution
               2 a number of the kernel and place of the output; over ranked neighbors 3 a channel
               and slot for "depthwise" (weigh, scale, add), 1 + 2 C for "standard"
    selection  a comparison of each score with the k-th best so far, and k / 2 steps for each that
               enters: k (1 + ln(M / k)) of M in random order
    gather     a number that is picked up at an index
    other      softmax (5 a score), norms (7 a number), GELU (5), sums, masks and the rest
    ========== ====================================================================================

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

    Returns
    -------
    count : OperationCount

    Raises
    ------
    ValueError
        If the module or an input does not lie on a CPU.

    Examples
    --------
    >>> layer = nn.Linear(8, 4, bias=False)
    >>> count_operations(layer, torch.randn(3, 8)).products
    192.0
    """
    places = {x.device.type for x in (*module.parameters(), *module.buffers(), *inputs)}
    if places - {"cpu"}:
        raise ValueError(
            f"Operations are counted on a CPU; the model or its input lies on "
            f"{', '.join(sorted(places - {'cpu'}))}. Move both: counts do not depend on the device."
        )
    was = {name: part.training for name, part in module.named_modules()}
    module.train(training)
    counter = _Counter()
    try:
        # The random state stays as it was: counting draws candidates and dropout.
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            attention_implementation("cpu"),
            counter.follow(module),
            counter,
        ):
            module(*inputs, **keywords)
    finally:
        for name, part in module.named_modules():
            part.training = was[name]
    counts = {name: dict(kinds) for name, kinds in counter.counts.items()}
    return OperationCount(counts, tuple(sorted(counter.uncounted)))


class _Counter(TorchDispatchMode):
    """Sees every operator that runs, and knows in which module."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, defaultdict[str, float]] = {}
        self.uncounted: set[str] = set()
        self._inside: list[tuple[str, nn.Module]] = []

    @contextmanager
    def follow(self, root: nn.Module) -> Iterator[None]:
        """Note which module runs."""
        hooks = []
        for name, module in root.named_modules():
            here = (name, module)
            hooks.append(module.register_forward_pre_hook(lambda *_, h=here: self._enter(h)))
            hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, here: tuple[str, nn.Module]) -> None:
        self._inside.append(here)

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and add what it costs."""
        output = func(*args, **(kwargs or {}))
        own = self.counts.setdefault(
            self._inside[-1][0] if self._inside else "", defaultdict(float)
        )
        # Its matrices for slots are multiplied like those of linear layers.
        mixes = any(isinstance(module, SlotConvolution) for _, module in self._inside)
        for kind, n in self._cost(func, args, kwargs or {}, output).items():
            product = mixes and kind in ("linear", "attention")
            own["convolution" if product else kind] += float(n)
        return output

    def _cost(self, func: Any, args: tuple[Any, ...], kwargs: Any, output: Any) -> Cost:
        rule = RULES.get(func.name().partition(".")[0])
        if rule is not None:
            return rule(args, kwargs, output)
        if is_free(func):
            return {}
        if torch.Tag.pointwise in func.tags:
            return pointwise_cost(output)
        self.uncounted.add(func.name())
        return {}
