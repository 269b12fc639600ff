"""Searches, heads and networks on an accelerator, as far as a CPU can tell."""

import numpy as np
import pytest
import torch

from nearwise.estimators.model.row_models import StageSpace
from tests.estimators.cases import CHEAP, attn_knn, blobs
from tests.reference.strict_program import run_program

_PROGRAM = """
import sys
import numpy as np
from nearwise.estimators import AttnKNNClassifier
from tests.estimators.cases import attn_knn, table
from tests.estimators.image_cases import patches
from tests.reference.strict_device import NAME, strict_device

QUICK = {"head": {"epochs": 2}, "train": {"epochs": 1}, "random_state": 0}
IMAGES = {"embedder": "resnet-small", "embedder_options": {"dim": 8}, "cv": 0.25}
IMAGES["class_prior"] = "uniform"
TABLE = {"embedder": "deep", "cv": 2}
TABLE["head"] = {"epochs": 2}

def flow(device, settings, X, y, X_new, y_new):
    model = attn_knn(device=device, **(QUICK | settings)).fit(X, y)
    found = {"new": model.predict_proba(X_new), "ids": model.kneighbors(X_new)[1]}
    found["strange"] = model.novelty_p_value(X_new)
    ids = model.add(X_new[:3], y_new[:3])
    model.relabel(ids[:1], y_new[3:4])
    model.remove(ids[2:])
    found["changed"] = model.predict_proba(X_new)
    shown = model.explain(X_new[:1], 1)[0].neighbors[0]
    found["explained"] = shown.proba_without
    if settings is TABLE:
        model.refresh()
        found["refreshed"] = model.predict_proba(X_new)
        found["left out"] = model.predict_proba(None)
    model.save(sys.argv[1])
    again = AttnKNNClassifier.load(sys.argv[1])
    assert np.array_equal(again.predict_proba(X_new), model.predict_proba(X_new))
    return found

X, y = table(100)
data = {"table": (X[:-8], y[:-8], X[-8:], y[-8:]), "images": (*patches(80), *patches(8, seed=1))}
what = sys.argv[2]
settings = {"table": TABLE, "images": IMAGES | {"tta": ("flip",)}}[what]
plain = flow("cpu", settings, *data[what])
with strict_device():
    there = flow(NAME, settings, *data[what])
for name, value in plain.items():
    np.testing.assert_allclose(there[name], value, atol=5e-3 if what == "images" else 1e-6)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["table", "images"])
def test_everything_runs_on_an_accelerator_and_nothing_is_mixed(what, tmp_path):
    run_program(_PROGRAM, tmp_path / "model", what)


def test_searches_in_plain_torch_predict_as_the_compiled_ones_do():
    X, y = blobs()
    model = attn_knn(**CHEAP).fit(X, y)
    plain = model.predict_proba(X + 0.1), model.predict_proba(None)
    model._predictor.views.forget()
    model._predictor.views.device = torch.device("cpu")
    np.testing.assert_allclose(model.predict_proba(X + 0.1), plain[0], atol=1e-7)
    np.testing.assert_allclose(model.predict_proba(None), plain[1], atol=1e-7)


def test_a_depth_is_mapped_alike_on_a_device():
    values = torch.randn(60, 9, generator=torch.Generator().manual_seed(0)).relu() * 5
    values[:, 4] = 2.0  # a column without spread
    space = StageSpace.fit(values)
    torch.testing.assert_close(space.on_device(values), space(values), atol=1e-5, rtol=0)
