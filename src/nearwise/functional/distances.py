"""Distances between rows: smaller is nearer, for every metric."""

import contextlib
import os
from typing import Literal, get_args

import torch
from torch import Tensor

Metric = Literal["euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"]
METRICS: tuple[Metric, ...] = get_args(Metric)
# Outside this range float32 products may overflow or vanish: distances are computed directly.
LARGEST_NORM, SMALLEST_NORM = 1e18, 1e-15
# Subtract the mean of the keys when it is longer than this many standard deviations.
_LONG_MEAN = 2.0
# A little more than twice the rounding unit of the two factors.
_BFLOAT16, _TF32 = 1.01 * 2.0**-7, 1.01 * 2.0**-10
_PRODUCT_ERRORS = {
    "none": 0.0,
    "ieee": 0.0,
    "highest": 0.0,
    "strict": 0.0,
    "tf32": _TF32,
    "high": _TF32,
}


def check_metric(metric: str) -> Metric:
    """Return `metric` if it is one of `METRICS`, else raise a ValueError that names them."""
    for name in METRICS:
        if metric == name:
            return name
    raise ValueError(f"metric={metric!r} is not known. Use one of {', '.join(METRICS)}.")


def pairwise_distances(query: Tensor, keys: Tensor, metric: Metric = "euclidean") -> Tensor:
    """Distances of all pairs of query and key by matrix multiplication, differentiable.

    The Euclidean metrics expand ``|q - k|^2 = |q|^2 - 2 q.k + |k|^2`` around the mean of the keys,
    which is fast but rounds at about ``1e-7 * |q|^2``; `paired_distances` and
    `nearwise.functional.topk_neighbors` return the directly computed ones.

    Parameters
    ----------
    query : Tensor of shape (n_queries, n_features)
        Floating point. float16 and bfloat16 are computed in float32.
    keys : Tensor of shape (n_keys, n_features)
        Same device and width as `query`.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        "euclidean" (default): L2, in [0, inf). "sqeuclidean": its square. "cosine": ``1 - cos``, in
        [0, 2]; a row of zeros is at 1 from every row. "inner_product": ``-q.k``, unbounded.
        "manhattan": L1, in [0, inf), computed directly.

    Returns
    -------
    distances : Tensor of shape (n_queries, n_keys)
        Smaller is nearer; float32, or float64 if an input is float64. The gradient of "euclidean"
        is 0 where the distance is 0.

    Raises
    ------
    ValueError
        If the metric is unknown or the shapes do not fit.
    """
    metric = check_metric(metric)
    _check_width(query, keys, query.ndim == 2 and keys.ndim == 2, "(n_keys, n_features)")
    query, keys = _promote(query, keys)
    if metric == "inner_product":
        return -(query @ keys.T)
    if metric == "manhattan":
        return torch.cdist(query, keys, p=1.0)
    if metric == "cosine":
        return (1.0 - unit_rows(query) @ unit_rows(keys).T).clamp(0.0, 2.0)
    center = keys.detach().mean(0) if len(keys) else 0.0
    query, keys = query - center, keys - center
    squared = (query.square().sum(1)[:, None] + keys.square().sum(1)) - 2.0 * (query @ keys.T)
    squared = squared.clamp_min(0.0)
    return _root(squared) if metric == "euclidean" else squared


def paired_distances(query: Tensor, neighbors: Tensor, metric: Metric = "euclidean") -> Tensor:
    """Distances of each query to its own neighbors, computed directly, differentiable.

    Parameters
    ----------
    query : Tensor of shape (n_queries, n_features)
        Floating point. float16 and bfloat16 are computed in float32.
    neighbors : Tensor of shape (n_queries, n_neighbors, n_features)
        Keys of each query's neighbors.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Units as in `pairwise_distances`; "euclidean" by default.

    Returns
    -------
    distances : Tensor of shape (n_queries, n_neighbors)
        Smaller is nearer; exactly 0 for identical rows, except with "inner_product".

    Raises
    ------
    ValueError
        If the metric is unknown or the shapes do not fit.
    """
    metric = check_metric(metric)
    fits = query.ndim == 2 and neighbors.ndim == 3 and len(query) == len(neighbors)
    _check_width(query, neighbors, fits, "(n_queries, n_neighbors, n_features)")
    query, neighbors = _promote(query, neighbors)
    query = query[:, None, :]
    if metric == "inner_product":
        return -(query * neighbors).sum(-1)
    if metric == "manhattan":
        return (query - neighbors).abs().sum(-1)
    if metric == "cosine":
        # Half the squared chord of unit vectors is 1 - cos, without its cancellation near 0.
        chord = 0.5 * (unit_rows(query) - unit_rows(neighbors)).square().sum(-1)
        empty = (query == 0).all(-1) | (neighbors == 0).all(-1)
        return torch.where(empty, torch.ones_like(chord), chord.clamp_max(2.0))
    squared = (query - neighbors).square().sum(-1)
    return _root(squared) if metric == "euclidean" else squared


def _root(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinity, at 0."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


def unit_rows(rows: Tensor) -> Tensor:
    """Scale vectors (..., D) to unit length; zeros stay zero."""
    if _may_look(rows):
        norms = torch.linalg.vector_norm(rows.detach(), dim=-1)
        if bool(((norms > 1e-9) & (norms < 1e18)).all()):
            return torch.nn.functional.normalize(rows, dim=-1)
    # Squares of very large or very small numbers overflow or vanish.
    size = rows.detach().abs().amax(-1, keepdim=True)
    fits = ((size > 1e-9) & (size < 1e15)) | (size == 0)
    return torch.nn.functional.normalize(rows / torch.where(fits, 1.0, size), dim=-1)


def _may_look(rows: Tensor) -> bool:
    """Whether a value can be read without waiting for a device or breaking a traced graph."""
    if torch.compiler.is_compiling() or rows.device.type != "cpu" or type(rows) is not Tensor:
        return False
    traced = torch._C._functorch.peek_interpreter_stack() is not None
    return not (traced or torch.onnx.is_in_onnx_export())


def _promote(query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    if not (query.is_floating_point() and keys.is_floating_point()):
        raise ValueError(
            f"query has dtype {query.dtype} and keys have {keys.dtype}; distances need floating "
            "point. Call .float() on both."
        )
    wide = torch.float64 in (query.dtype, keys.dtype)
    dtype = torch.float64 if wide else torch.float32
    return query.to(dtype), keys.to(dtype)


def _check_width(query: Tensor, keys: Tensor, fits: bool, shape: str) -> None:
    if not fits or query.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"query has shape {tuple(query.shape)} and keys have {tuple(keys.shape)}. "
            f"Pass (n_queries, n_features) and {shape} with the same n_features."
        )


def center_of(keys: Tensor) -> Tensor | None:
    """Return a mean to subtract if a far origin would cost float32 precision, else None."""
    sample = keys.detach()[:: max(1, len(keys) // 512)].float()
    mean = sample.mean(0)
    if not bool(torch.isfinite(mean).all()):
        return None
    spread = (sample - mean).norm(dim=1).mean()
    return mean if float(mean.norm()) > _LONG_MEAN * float(spread) else None


def product_error(device: torch.device) -> float:
    """Bound the additional relative error of float32 products under torch's settings.

    Torch may round the factors to tf32 or bfloat16; the least precise setting applies.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    owners = (getattr(backend, "matmul", None), backend, torch.backends)
    names = {str(getattr(owner, "fp32_precision", "none")) for owner in owners}
    # torch raises if the backends have different settings.
    with contextlib.suppress(RuntimeError):
        names.add(torch.get_float32_matmul_precision())
    names.add(os.environ.get("DNNL_DEFAULT_FPMATH_MODE", "none").lower())
    names.add(os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "none").lower())
    return max(_PRODUCT_ERRORS.get(name, _BFLOAT16) for name in names)
