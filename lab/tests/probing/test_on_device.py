"""Encoders of the lab on an accelerator, as far as a CPU can tell."""

import pytest

from tests.reference.strict_program import run_program

_PROGRAM = """
import numpy as np
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.probing import Pixels, RandomInit, SparsePoints
from nearwise.probes import extract_features
from tests.probes.cases import images
from tests.reference.strict_device import NAME, strict_device

def flow(device):
    return [
        extract_features(encoder, images(10, 8), device=device, views=2).X
        for encoder in (Pixels((8, 8), 1), SparsePoints((8, 8), 1),
                        RandomInit(lambda: make_perceiver("digits", random_state=0)))
    ]

plain = flow("cpu")
with strict_device():
    there = flow(NAME)
for one, other in zip(there, plain, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-3)
"""


@pytest.mark.slow
def test_encoders_run_on_an_accelerator_and_nothing_is_mixed():
    run_program(_PROGRAM)
