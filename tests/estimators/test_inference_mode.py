"""Callers may have switched gradients off: fits, changes and loading work there, and after it."""

from contextlib import nullcontext

import pytest
import torch

from nearwise import AttentionProbe, KNNProbe, LinearProbe, TransformerProbe
from nearwise.estimators import AttnKNNClassifier, review
from nearwise.nn import pretrained_head
from tests.estimators.cases import attn_knn, blobs, same

X, Y = blobs(120)
MODES = pytest.mark.parametrize("off", [torch.inference_mode, torch.no_grad])


@pytest.fixture(autouse=True)
def _head_not_loaded_yet():
    pretrained_head.shared_head.cache_clear()
    yield
    pretrained_head.shared_head.cache_clear()


def fitted():
    return attn_knn(random_state=0, n_jobs=1, train={"epochs": 2}).fit(X[:90], Y[:90])


@MODES
def test_a_fit_inside_gives_the_same_model(off):
    with off():
        inside = fitted()
    assert same(inside.predict_proba(X), fitted().predict_proba(X))


@MODES
def test_whoever_predicts_inside_can_go_on_outside(off, tmp_path):
    model = fitted()
    model.save(tmp_path / "m")
    answers = []
    for mode in (off, nullcontext):
        with mode():
            loaded = AttnKNNClassifier.load(tmp_path / "m")
            loaded.predict_proba(X)
            loaded.explain(X[:2])
            review(loaded).issues()
            loaded.add(X[90:100], Y[90:100])
        loaded.relabel([0], Y[:1])
        loaded.remove([1])
        loaded.add(X[100:], Y[100:])
        loaded.refresh()
        answers.append(loaded.predict_proba(X))
    fitted()
    assert same(*answers)


@MODES
@pytest.mark.parametrize("probe", [KNNProbe, LinearProbe, AttentionProbe, TransformerProbe])
def test_a_probe_is_fitted_inside(off, probe):
    with off():
        inside = probe(random_state=0).fit(X, Y)
    assert same(inside.predict_proba(X), probe(random_state=0).fit(X, Y).predict_proba(X))
