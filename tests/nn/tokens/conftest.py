"""Cases come as fixtures: the lab's tests give its own layers to the same checks."""

import pytest

from tests.nn.tokens.cases import CASES, TORCHS, one_each


@pytest.fixture(params=[*CASES, TORCHS], ids=str)
def case(request):
    """A layer in one setting."""
    return request.param


@pytest.fixture(params=one_each(CASES), ids=str)
def layer_case(request):
    """One setting of a class of layers."""
    return request.param
