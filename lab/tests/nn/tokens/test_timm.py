"""timm's vision transformer with the lab's layers."""

import pytest

from lab.tests.nn.tokens.cases import CASES
from tests.nn.tokens.cases import one_each
from tests.nn.tokens.test_timm import (
    make,
    test_the_arguments_of_timms_attention_are_taken_or_refused,
    test_timm_builds_every_layer,
)

__all__ = [
    "make",
    "test_the_arguments_of_timms_attention_are_taken_or_refused",
    "test_timm_builds_every_layer",
]


@pytest.fixture(
    params=[case for case in one_each(CASES) if hasattr(case.layer, "configured")], ids=str
)
def layer_case(request):
    """One setting of a class of layers that timm can be given."""
    return request.param
