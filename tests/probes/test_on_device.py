"""Encoders and probes on an accelerator, as far as a CPU can tell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import numpy as np
import torch
from nearwise.data import Context
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.probing import Pixels, RandomInit, SparsePoints
from nearwise.probes import *
from tests.probes.cases import blobs, images
from tests.probes.test_transformer import SMALL, tokens
from tests.reference.strict_device import NAME, strict_device

X, y = blobs(120)
held = blobs(40, seed=1)
T, ty = tokens(60)

def flow(device):
    found = {}
    for encoder in (Pixels((8, 8), 1), SparsePoints((8, 8), 1),
                    RandomInit(lambda: make_perceiver("digits", random_state=0))):
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
        made = extract_features(Pixels((8, 8), 1), images(10, 8), device=device,
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
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot register a device in Python",
)
def test_probes_run_on_an_accelerator_and_nothing_is_mixed():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert not done.returncode, done.stderr[-3000:]
