"""The lab's layers take the arguments of timm's attention."""

import pytest

from lab.tests.nn.tokens.cases import CASES
from tests.nn.tokens.cases import one_each
from tests.nn.tokens.test_timm import test_the_arguments_of_timms_attention_are_taken_or_refused

__all__ = ["test_the_arguments_of_timms_attention_are_taken_or_refused"]


@pytest.fixture(
    params=[case for case in one_each(CASES) if hasattr(case.layer, "configured")], ids=str
)
def layer_case(request):
    """One setting of a class of layers that timm can be given."""
    return request.param
