"""The lab's layers by distance and by angle: far from the origin, and in half precision."""

import pytest
import torch
from nearwise_lab.nn.convnn import ConvNNAttention

from tests.nn.tokens.cases import DIM, HEADS
from tests.nn.tokens.test_far_tokens import (
    K5,
    angles_train,
    each_implementation,
    test_a_bias_common_to_queries_and_keys_changes_no_distances,
)

__all__ = ["test_a_bias_common_to_queries_and_keys_changes_no_distances"]


@pytest.fixture(params=[{}, {"sampling": "line", "num_samples": 9}], ids=["all", "sampled"])
def layer(request):
    torch.manual_seed(0)
    return ConvNNAttention(DIM, HEADS, **K5, metric="euclidean", **request.param).eval()


@each_implementation
def test_angles_in_half_precision_train(implementation):
    angles_train(ConvNNAttention, implementation, weighting="raw")
