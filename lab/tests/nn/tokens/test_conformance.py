"""What holds for every token layer holds for those of the lab."""

import pytest
from nearwise_lab.nn.layers import TOKEN_LAYERS

from lab.tests.nn.tokens.cases import CASES
from tests.nn.tokens import cases as library
from tests.nn.tokens.cases import tokens
from tests.nn.tokens.test_conformance import *  # noqa: F403


def test_every_layer_is_checked():
    checked = {case.layer for case in (*library.CASES, *CASES)}
    assert {x for x in TOKEN_LAYERS.values() if x.__name__ != "TokenConvolution"} == checked


@pytest.mark.parametrize(
    "case", [x for x in CASES if x.name.startswith(("branching-conv", "natten-2d"))], ids=str
)
def test_layers_without_an_order_refuse_to_be_causal(case):
    with pytest.raises(ValueError, match="is_causal"):
        case.make()(tokens(), is_causal=True)
