"""The lab's layers keep the library's contract of masks."""

import math

import pytest
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention, SparseAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

from tests.nn.tokens.test_mask_contract import (
    MANY,
    _exact,
    made,
    test_masks_mean_what_they_mean_in_torch,
)

__all__ = ["_exact", "test_masks_mean_what_they_mean_in_torch"]
LAYERS = {
    "MultiHeadAttention": lambda n, dtype: made(MultiHeadAttention, dtype),
    "KvtAttention": lambda n, dtype: made(KvtAttention, dtype),
    "ConvNNAttention": lambda n, dtype: made(ConvNNAttention, dtype, n_neighbors=MANY),
    "NeighborhoodAttention1D": lambda n, dtype: made(
        NeighborhoodAttention1D, dtype, kernel_size=max(n, 1)
    ),
    "NeighborhoodAttention2D": lambda n, dtype: made(
        NeighborhoodAttention2D, dtype, kernel_size=max(math.isqrt(n), 1)
    ),
    "SparseAttention": lambda n, dtype: made(SparseAttention, dtype, mode="all"),
}


@pytest.fixture(params=LAYERS)
def make(request):
    """What makes a layer for a number of tokens and a dtype."""
    return LAYERS[request.param]
