"""Inputs for the k-NN attention over tokens, and its slow reference on tensors."""

import numpy as np
import torch
import torch.nn.functional as F

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from tests.reference.token_attention import knn_attention as slow

IMPLEMENTATIONS = ("plain", "cpu")
METRICS = ("matmul", "cosine", "euclidean")
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-10}


def random_tokens(shape, n_keys=None, value_width=None, dtype=torch.float64, seed=0):
    """Draw query (B, H, N, D), key (B, H, M, D) and value (B, H, M, Dv)."""
    *lead, n_queries, width = shape
    n_keys = n_queries if n_keys is None else n_keys
    generator = torch.Generator().manual_seed(seed)
    sizes = ((n_queries, width), (n_keys, width), (n_keys, value_width or width))
    return [torch.randn(*lead, *size, generator=generator).to(dtype) for size in sizes]


def lattice_tokens(shape, n_keys=None, dtype=torch.float64, seed=0):
    """Draw tokens of entries -1 and 1, of width 4: scores tie often, and are exact everywhere."""
    *lead, n_queries, width = shape
    assert width == 4  # so that the length of a vector is exact too
    n_keys = n_queries if n_keys is None else n_keys
    generator = torch.Generator().manual_seed(seed)
    sizes = (n_queries, n_keys, n_keys)
    return [
        (torch.randint(0, 2, (*lead, n, width), generator=generator) * 2 - 1).to(dtype)
        for n in sizes
    ]


def expected(query, key, value, n_neighbors, *, metric="matmul", scale=None, **options):
    """The slow reference on tensors; takes the arguments of `attend`."""
    lead = query.shape[:-2]
    shape = (1,) * (2 - len(lead)) + tuple(lead) if len(lead) != 1 else (lead[0], 1)
    if metric == "cosine":  # in single precision at least
        query, key = (x if x.dtype == torch.float64 else x.float() for x in (query, key))
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        metric, scale = "matmul", 1.0 if scale is None else scale
    four = [x.detach().double().reshape(*shape, *x.shape[-2:]).numpy() for x in (query, key, value)]
    bias = options.pop("attn_mask", None)
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros(bias.shape).masked_fill(~bias, -torch.inf)
        bias = bias.detach().double().expand(*lead, query.shape[-2], key.shape[-2])
        bias = bias.reshape(*shape, *bias.shape[-2:]).numpy()
    padding = options.pop("key_padding_mask", None)
    padding = None if padding is None else padding.expand(shape[0], -1).tolist()
    candidates = options.pop("candidates", None)
    candidates = None if candidates is None else candidates.expand(shape[0], -1).tolist()
    parts = slow(
        *four,
        n_neighbors,
        metric=metric,
        scale=scale,
        bias=bias,
        padding=padding,
        candidates=candidates,
        **options,
    )
    return [torch.from_numpy(x).reshape(*lead, *x.shape[-2:]) for x in parts]


def assert_as_expected(implementation, query, key, value, n_neighbors, wanted=None, **options):
    """Compare an implementation with the slow reference: who, with which weights, what."""
    with attention_implementation(implementation):
        found = attend(query, key, value, n_neighbors, **options)
    output, indices, weights = wanted or expected(query, key, value, n_neighbors, **options)
    np.testing.assert_array_equal(found.indices.numpy(), indices.numpy())
    close = {"atol": TOLERANCE[query.dtype], "rtol": TOLERANCE[query.dtype]}
    torch.testing.assert_close(found.weights.double(), weights, **close)
    torch.testing.assert_close(found.output.double(), output, **close)
    assert found.output.dtype == found.weights.dtype == query.dtype
    assert found.indices.dtype == torch.int32
