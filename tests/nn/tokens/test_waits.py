"""A step of a layer never waits for its device: no value is looked at.

Tensors of the device "meta" have no values, so that looking at one fails, as it waits on a GPU.
"""

import pytest
import torch

from nearwise.functional import knn_attention
from nearwise.nn import KNNAttention
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS

ON = {"device": "meta"}


def masks(case):
    given = {"key_padding_mask": torch.zeros(2, N_TOKENS, dtype=torch.bool, **ON)}
    if case.masked:
        given["attn_mask"] = torch.ones(N_TOKENS, N_TOKENS, dtype=torch.bool, **ON)
    return given | ({"is_causal": True} if case.causal else {})


def run(call, *inputs):
    """Forward and backward pass."""
    output = call(*inputs)
    output.square().sum().backward()
    assert output.device.type == "meta"


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_with_all_masks(case, mode):
    layer = getattr(case.layer(DIM, HEADS, **case.options, **ON), mode)()
    x = torch.randn(2, N_TOKENS, DIM, requires_grad=True, **ON)
    run(lambda x: layer(x, **masks(case)), x)


@pytest.mark.parametrize("include_self", ["candidate", "always", "never"])
@pytest.mark.parametrize("metric", ["matmul", "cosine", "euclidean"])
def test_with_candidates(metric, include_self):
    run_with_candidates(KNNAttention(DIM, HEADS, metric=metric, include_self=include_self, **ON))


def run_with_candidates(layer):
    candidates = torch.zeros(2, 6, dtype=torch.int64, **ON)
    x = torch.randn(2, N_TOKENS, DIM, requires_grad=True, **ON)
    run(lambda x: layer(x, candidates=candidates), x)


def test_a_look_would_be_seen():
    x = torch.randn(2, 3, **ON)
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool((x > 0).any())


def test_candidates_on_the_cpu_are_checked_and_others_are_not():
    x = torch.randn(1, 5, 4)

    def call(x, candidates):
        return knn_attention(x, x, x, 2, candidates=candidates)

    compiled = torch.compile(call, backend="aot_eager")
    for wrong, message in (([2, 9], "between 2 and 9"), ([-1, 2], "between -1"), ([2, 2], "twice")):
        for given in (wrong, torch.tensor(wrong)):
            for run_it, tokens in ((call, x), (call, x.to("meta")), (compiled, x)):
                with pytest.raises(ValueError, match=message):
                    run_it(tokens, given)
        assert call(x.to("meta"), torch.tensor(wrong, **ON)).shape == (1, 5, 4)
