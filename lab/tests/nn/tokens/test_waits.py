"""A step of the lab's layers never waits for its device either."""

from nearwise_lab.nn.convnn import ConvNNAttention

from tests.nn.tokens.cases import DIM, HEADS
from tests.nn.tokens.test_waits import ON, run_with_candidates, test_with_all_masks

__all__ = ["test_with_all_masks"]


def test_with_candidates():
    run_with_candidates(ConvNNAttention(DIM, HEADS, **ON))
