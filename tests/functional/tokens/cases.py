"""Inputs for the k-NN attention over tokens, and its slow reference on tensors."""

import numpy as np
import torch

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from tests.reference.token_attention import knn_attention as expected

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
