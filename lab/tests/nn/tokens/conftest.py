"""The lab's layers, for the library's checks of token layers."""

import pytest

from lab.tests.nn.tokens.cases import CASES
from tests.nn.tokens.cases import one_each


@pytest.fixture(params=CASES, ids=str)
def case(request):
    """A layer in one setting."""
    return request.param


@pytest.fixture(params=one_each(CASES), ids=str)
def layer_case(request):
    """One setting of a class of layers."""
    return request.param
