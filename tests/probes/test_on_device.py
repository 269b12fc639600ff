"""Encoders and probes on an accelerator, as far as a CPU can tell."""

import pytest

from tests.reference.strict_program import run_program

_PROGRAM = """
import numpy as np
import torch
from nearwise.data import Context
from nearwise.probes import *
from tests.probes.cases import Pixels, Points, blobs, images
from tests.probes.test_transformer import SMALL, tokens
from tests.reference.strict_device import NAME, strict_device

X, y = blobs(120)
held = blobs(40, seed=1)
T, ty = tokens(60)

def flow(device):
    found = {}
    for encoder in (Pixels(8), Points()):
        name = type(encoder).__name__
        made = extract_features(encoder, images(10, 8), device=device, views=2)
        found[name] = made.X
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5))
    found["module"] = extract_features(module, images(10, 8), device=device).X  # moves it
    found["module there"] = extract_features(module, images(10, 8)).X
    found["method"] = extract_features(module.forward, images(10, 8)).X
    weight = module[1].weight.detach()
    found["function"] = extract_features(lambda x: x.flatten(1) @ weight.T, images(10, 8),
                                         device=device).X
    for text in ("0.3", "0.3:fixed", "0.3:batch"):
        made = extract_features(Pixels(8), images(10, 8), device=device,
                                context=Context.parse(text))
        found[text] = made.X
    options = {"random_state": 0, "device": device}
    for name, probe in {
        "knn": KNNProbe(5, weights="softmax", temperature="val", **options),
        "distance": KNNProbe(5, weights="distance", **options),
        "linear": LinearProbe(**options),
        "attention": AttentionProbe(5, keys="both", **options),
        "features": AttentionProbe(5, keys="features", **options),
    }.items():
        fitted = probe.fit(X, y, validation=held, refit=True)
        found[name] = fitted.predict_proba(held[0])
        if name != "linear":
            found[name + " left out"] = fitted.predict_proba()
    probe = TransformerProbe(**{**SMALL, "epochs": 2}, **options).fit(T, ty)
    found["transformer"] = probe.predict_proba(T)
    return found

plain = flow("cpu")
with strict_device():
    there = flow(NAME)
for name, value in plain.items():
    np.testing.assert_allclose(there[name], value, atol=2e-3, err_msg=name)
"""


@pytest.mark.slow
def test_probes_run_on_an_accelerator_and_nothing_is_mixed():
    run_program(_PROGRAM)
