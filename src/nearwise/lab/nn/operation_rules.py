"""What each operator of torch costs, in operations by kind; see `count_operations`."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import conv_flop_count

Cost = dict[str, float]
Rule = Callable[[tuple[Any, ...], dict[str, Any], Any], Cost]

SOFTMAX, NORM, GELU, SIGMOID = 5, 7, 5, 4  # operations a number

# Move or make numbers and compute none.
_FREE = frozenset(
    (
        "_local_scalar_dense",
        "_reshape_alias",
        "_to_copy",
        "_unsafe_view",
        "alias",
        "arange",
        "bernoulli",
        "bernoulli_",
        "cartesian_prod",
        "cat",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "copy_",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "eye",
        "fill_",
        "full",
        "full_like",
        "is_same_size",
        "lift_fresh",
        "linspace",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "nonzero",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randn",
        "randperm",
        "repeat",
        "resize_",
        "scalar_tensor",
        "set_",
        "stack",
        "tril",
        "tril_",
        "triu",
        "triu_",
        "zero_",
        "zeros",
        "zeros_like",
    )
)


def is_free(func: Any) -> bool:
    """Tell whether an operator only moves, views or makes numbers."""
    if func.is_view:
        return True
    bare = func.name().partition("::")[2].partition(".")[0]
    return bare in _FREE


def pointwise_cost(output: Any) -> Cost:
    """One operation a number of the output."""
    return {"other": output.numel()} if isinstance(output, Tensor) else {}


def selection_operations(n_scores: float, k: int) -> float:
    """Return the expected steps to select the `k` best of scores in random order, in order.

    Every score is compared with the k-th best so far; the i-th enters with probability k / i and
    then passes half of the list.
    """
    k = min(k, int(n_scores))
    return n_scores + k * (1 + math.log(n_scores / k)) * k / 2


def _mm(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    return {"linear": 2 * output.numel() * args[0].shape[-1]}


def _addmm(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    return {"linear": 2 * output.numel() * args[1].shape[-1], "other": output.numel()}


def _bmm(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    return {"attention": 2 * output.numel() * args[0].shape[-1]}


def _baddbmm(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    return {"attention": 2 * output.numel() * args[1].shape[-1], "other": output.numel()}


def _convolution(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    x, weight, bias, *_rest = args
    transposed = args[6]
    flops = conv_flop_count(list(x.shape), list(weight.shape), list(output.shape), transposed)
    return {"convolution": flops, "other": 0 if bias is None else output.numel()}


def _dense_attention(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Cost:
    query, key, value = args[:3]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    masked = any(isinstance(x, Tensor) for x in (*args[3:], kwargs.get("attn_mask")))
    return {
        "attention": 2 * pairs * (query.shape[-1] + value.shape[-1]),
        "other": pairs * (SOFTMAX + masked),
    }


def _knn_attention(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> Cost:
    query, key, value, k, squared, _scale, bias, padding, is_causal, _self, candidates, keep = args
    rows = math.prod(query.shape[:-1])
    n_columns = key.shape[-2] if candidates is None else candidates.shape[1]
    width, value_width = query.shape[-1], value.shape[-1]
    # Distances: the squares of both, and two sums, a clamp and a root a pair.
    more = 2 * width * (rows + math.prod(key.shape[:-1])) + 4 * rows * n_columns if squared else 0
    masks = (bias is not None) + (padding is not None) + bool(is_causal)
    gathered = rows * k * value_width
    if candidates is not None:
        gathered += math.prod(query.shape[:2]) * n_columns * width
    return {
        "attention": 2 * rows * (n_columns * width + k * value_width),
        "selection": rows * selection_operations(n_columns, k),
        "gather": gathered,
        "other": rows * (SOFTMAX * k + n_columns * masks + (k if keep is not None else 0)) + more,
    }


def _slot_sum(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> Cost:
    value, indices = args[:2]
    n = indices.numel() * value.shape[-1]
    return {"convolution": 3 * n, "gather": n}


def _slot_mix(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> Cost:
    value, indices, _weights, kernel = args[:4]
    n = indices.numel() * value.shape[-1]
    return {"convolution": 2 * n * kernel.shape[-1] + n, "gather": n}


def _topk(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Cost:
    x = args[0]
    k = args[1] if len(args) > 1 else kwargs["k"]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    return {"selection": x.numel() / x.shape[dim] * selection_operations(x.shape[dim], k)}


def _sort(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Cost:
    x, dim = args[0], kwargs.get("dim", -1)
    return {"selection": x.numel() * max(1.0, math.log2(x.shape[dim]))}


def _gathered(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    return {"gather": output.numel()}


def _scattered(args: tuple[Any, ...], _: dict[str, Any], output: Tensor) -> Cost:
    index = args[2]
    moved = index.numel() if isinstance(index, Tensor) else 0
    return {"gather": moved}


def _each(operations: int) -> Rule:
    def cost(args: tuple[Any, ...], _: dict[str, Any], output: Any) -> Cost:
        return {"other": operations * args[0].numel()}

    return cost


RULES: dict[str, Rule] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _dense_attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _dense_attention,
    "aten::_scaled_dot_product_efficient_attention": _dense_attention,
    "nearwise::knn_attention": _knn_attention,
    "nearwise::slot_sum": _slot_sum,
    "nearwise::slot_mix": _slot_mix,
    "aten::topk": _topk,
    "aten::sort": _sort,
    **dict.fromkeys(
        ("aten::gather", "aten::index_select", "aten::index", "aten::embedding", "aten::take"),
        _gathered,
    ),
    **dict.fromkeys(("aten::scatter", "aten::scatter_add", "aten::scatter_add_"), _scattered),
    **dict.fromkeys(
        ("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax"), _each(SOFTMAX)
    ),
    **dict.fromkeys(("aten::native_layer_norm", "aten::_fused_rms_norm"), _each(NORM)),
    "aten::gelu": _each(GELU),
    "aten::sigmoid": _each(SIGMOID),
    "aten::silu": _each(SIGMOID + 1),
    "aten::native_dropout": _each(2),
    **dict.fromkeys(
        (
            "aten::sum",
            "aten::mean",
            "aten::amax",
            "aten::amin",
            "aten::any",
            "aten::all",
            "aten::cumsum",
            "aten::max",
            "aten::aminmax",
            "aten::min",
            "aten::floor_divide",
        ),
        _each(1),
    ),
    "aten::linalg_vector_norm": _each(2),
}
