"""What a mask forbids reaches nothing, whatever it holds: two sequences packed into one."""

import math

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from tests.functional.tokens.cases import IMPLEMENTATIONS, METRICS, random_tokens

N, FIRST = 9, 4  # tokens of both sequences, and of the first
BLOCKS = torch.block_diag(torch.ones(FIRST, FIRST), torch.ones(N - FIRST, N - FIRST)).bool()


def of_the_second(tokens, metric, mask):
    """Output, weights and gradients of the second sequence; the loss is about it alone."""
    leaves = [x.clone().requires_grad_() for x in tokens]
    found = attend(*leaves, 7, metric=metric, attn_mask=mask)
    output = found.output[:, :, FIRST:]
    (output.square().sum() + found.weights[:, :, FIRST:].square().sum()).backward()
    return [x[:, :, FIRST:] for x in (found.output, found.weights, *(x.grad for x in leaves))]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_packed_sequence_is_not_touched_by_the_other(implementation, metric, value, is_float):
    tokens = random_tokens((1, 2, N, 5), dtype=torch.float32)
    spoilt = [x.clone() for x in tokens]
    for x in spoilt:
        x[:, :, 0] = value  # the row that empty slots would read
    mask = torch.zeros(N, N).masked_fill(~BLOCKS, -math.inf) if is_float else BLOCKS
    with attention_implementation(implementation):
        wanted = of_the_second(tokens, metric, mask)
        got = of_the_second(spoilt, metric, mask)
    for own, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(own, other)
