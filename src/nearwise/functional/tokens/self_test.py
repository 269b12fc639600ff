"""Compare an implementation of the k-NN attention over tokens with plain torch operations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearwise.functional.tokens.plain import attend_plain, attend_selected
from nearwise.functional.tokens.plain_backward import backward_plain
from nearwise.functional.tokens.problem import Found, Tokens

Attend = Callable[[Tokens], Found]
Backward = Callable[[Tokens, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]

# Largest difference allowed, in parts of the largest number expected (or of .01).
TOLERANCES = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 2e-5,
    torch.float64: 1e-10,
}
_N_TOKENS = 80  # more than a tile of the Triton kernels, and not a multiple of one
_FEW_QUERIES = 40  # fewer than keys


class ShapeClass(NamedTuple):
    """What decides which code of an implementation runs; sizes up to a power of two are one."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    value_dtype: torch.dtype = torch.float32
    width: int = 16
    value_width: int = 16
    n_neighbors: int = 9
    euclidean: bool = False
    is_causal: bool = False
    include_self: str = "candidate"  # an `IncludeSelf`
    has_bias: bool = False
    has_padding: bool = False
    has_candidates: bool = False
    has_keep: bool = False

    @classmethod
    def of(cls, tokens: Tokens) -> "ShapeClass":
        """Return the class of a problem."""
        return cls(
            device=tokens.query.device.type,
            dtype=tokens.query.dtype,
            value_dtype=tokens.value.dtype,
            width=_rounded(tokens.query.shape[-1]),
            value_width=_rounded(tokens.value.shape[-1]),
            n_neighbors=_rounded(tokens.n_neighbors, at_least=2),
            euclidean=tokens.euclidean,
            is_causal=tokens.is_causal,
            include_self=tokens.include_self,
            has_bias=tokens.bias is not None,
            has_padding=tokens.padding is not None,
            has_candidates=tokens.candidates is not None,
            has_keep=tokens.keep is not None,
        )


def _rounded(size: int, at_least: int = 16) -> int:
    return max(at_least, 1 << max(0, size - 1).bit_length())


def small_problems(shape: ShapeClass, device: torch.device | str = "cpu") -> list[Tokens]:
    """Draw small problems of a class: N = M, and where a class allows it fewer and more queries."""
    if shape.is_causal or shape.include_self != "candidate":
        return [small_problem(shape, device)]
    n = _n_keys(shape)
    return [small_problem(shape, device, n_queries) for n_queries in (n, _FEW_QUERIES, n + 8)]


def _n_keys(shape: ShapeClass) -> int:
    return max(_N_TOKENS, shape.n_neighbors + 8)


def small_problem(
    shape: ShapeClass, device: torch.device | str = "cpu", n_queries: int | None = None
) -> Tokens:
    """Draw a small problem of a class: two items, two heads side by side, as a layer gives them.

    There are as many queries as keys, unless `n_queries` says how many. Padding leaves the second
    item fewer keys than there are slots.

    Tokens are whole numbers from -2 to 2: their scores are exact, tie often, and so select the same
    keys in the same order everywhere. The global random state stays as it is.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    m, k = _n_keys(shape), shape.n_neighbors
    n = m if n_queries is None else n_queries

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator, dtype=torch.float64, device="cpu")

    def rows(n_rows: int, width: int, dtype: torch.dtype, step: float) -> Tensor:
        drawn = (uniform(2, n_rows, 2, width) * 5 - 2.5).div(step).round().mul(step)
        return drawn.to(device, dtype).transpose(1, 2)

    # Scores by distance spread over less than 5: with a bias of 0 or 5, no two that differ in it
    # come so near each other that rounding decides which is first.
    bias = (uniform(2, 2, n, m) * 2).floor() * 5
    bias = bias.masked_fill(uniform(n, m) < 0.1, -torch.inf)
    padding = uniform(2, m) < 0.1
    padding[1, k // 2 :] = True
    candidates = uniform(2, m).argsort(-1)[:, : max(m // 2, k + 1)].sort(-1).values
    keep = (uniform(2, 2, n, k) < 0.75) / 0.75
    return Tokens(
        query=rows(n, shape.width, shape.dtype, 1.0),
        key=rows(m, shape.width, shape.dtype, 1.0),
        value=rows(m, shape.value_width, shape.value_dtype, 1 / 64),
        n_neighbors=k,
        euclidean=shape.euclidean,
        scale=2.0 ** -(shape.width.bit_length() // 2),  # a power of two, so that scores stay exact
        bias=bias.to(device, shape.dtype) if shape.has_bias else None,
        padding=padding.to(device) if shape.has_padding else None,
        is_causal=shape.is_causal,
        include_self=shape.include_self,
        candidates=candidates.to(device) if shape.has_candidates else None,
        keep=keep.to(device, shape.value_dtype) if shape.has_keep else None,
    )


def differences(tokens: Tokens, attend: Attend | None, backward: Backward | None = None) -> str:
    """Return how an implementation differs from plain torch operations.

    The plain ones run on the CPU in float64: they share no rounding and no device with what is
    compared.

    Parameters
    ----------
    tokens : Tokens
        A problem such as `small_problem` draws: where scores differ by less than a rounding, the
        selected keys may rightly be others.
    attend : callable, optional
        The forward pass, from `Tokens` to `Found`.
    backward : callable, optional
        The backward pass, with the arguments and results of `backward_plain`; it gets what plain
        operations selected, so that it is compared separately, and in some rows empty slots.

    Returns
    -------
    differences : str
        Empty where indices are equal and all numbers within `TOLERANCES` of the values' dtype; else
        what differs, and by how much. An exception of an implementation is passed on.
    """
    exact = _in_double(tokens)
    wanted = attend_plain(exact)
    tolerance = TOLERANCES[tokens.value.dtype]
    found: list[str] = []
    if attend is not None:
        output, indices, weights = attend(tokens)
        n_wrong = int((indices.cpu() != wanted.indices).sum())
        if n_wrong:
            found.append(f"{n_wrong} of {indices.numel()} indices differ")
        found += _apart("output", output, wanted.output, tolerance)
        found += _apart("weights", weights, wanted.weights, tolerance)
    if backward is not None:
        found += _apart_backward(tokens, exact, wanted, backward, tolerance)
    return "; ".join(found)


def _apart_backward(
    tokens: Tokens, exact: Tokens, wanted: Found, backward: Backward, tolerance: float
) -> list[str]:
    device, dtype = tokens.value.device, tokens.value.dtype
    exact = exact.unmasked()
    output, indices, weights = attend_selected(exact, _partly_empty(wanted.indices))
    generator = torch.Generator("cpu").manual_seed(1)
    sent, from_weights = (
        torch.randn(x.shape, generator=generator, device="cpu") for x in (output, weights)
    )
    slots = [x.to(device, dtype) for x in (weights, sent, from_weights)]
    weights, sent, from_weights = (x.cpu().double() for x in slots)
    expected = backward_plain(exact, indices, weights, sent, from_weights)
    found = backward(tokens.unmasked(), indices.to(device), *slots)
    return [
        text
        for name, ours, other in zip(_GRADIENTS, found, expected, strict=True)
        for text in _apart(f"gradients of {name}", ours, other, tolerance)
    ]


def _partly_empty(indices: Tensor) -> Tensor:
    """Empty the last slots (B, H, N, K) of every third query, as masks do: none filled, one, ..."""
    n_queries, n_slots = indices.shape[2:]
    row, slot = (torch.arange(n, device=indices.device) for n in (n_queries, n_slots))
    n_filled = torch.where(row % 3 == 0, row // 3 % (n_slots + 1), n_slots)
    return indices.masked_fill(slot >= n_filled[:, None], -1)


_GRADIENTS = ("query", "key", "value", "scores")


def _in_double(tokens: Tokens) -> Tokens:
    """Move a problem to the CPU, with its floating tensors in float64."""

    def moved(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        part = part.detach().cpu()
        return part.double() if part.is_floating_point() else part

    return Tokens(*(moved(part) for part in tokens))


def _apart(name: str, found: Tensor, wanted: Tensor, tolerance: float) -> list[str]:
    if found.shape != wanted.shape:
        return [f"{name} of shape {tuple(found.shape)}, not {tuple(wanted.shape)}"]
    allowed = tolerance * max(0.01, float(wanted.abs().max()))
    apart = float((found.detach().cpu().double() - wanted).abs().max())
    if apart <= allowed:
        return []
    return [f"{name} by up to {apart:.2g} (allowed: {allowed:.1g})"]  # NaN too
