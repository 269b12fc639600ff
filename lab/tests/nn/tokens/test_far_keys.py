"""A token far from all others that is left out changes no other in the lab's layers either."""

import pytest
import torch
from nearwise_lab.nn.convnn import ConvNNAttention

from tests.nn.tokens.cases import DIM, HEADS
from tests.nn.tokens.test_far_tokens import (
    EUCLIDEAN,
    test_a_far_token_that_is_left_out_changes_no_other,
)

__all__ = ["test_a_far_token_that_is_left_out_changes_no_other"]
OPTIONS = {
    "convnn": EUCLIDEAN,
    "convnn raw": {**EUCLIDEAN, "weighting": "raw"},
    "convnn sampled": {**EUCLIDEAN, "sampling": "line", "num_samples": 8},
}


@pytest.fixture(params=OPTIONS)
def layer(request, how):
    if request.param == "convnn sampled" and how == "future":
        pytest.skip("a token without candidates before it attends to nothing")
    torch.manual_seed(0)
    return ConvNNAttention(DIM, HEADS, **OPTIONS[request.param]).eval()
