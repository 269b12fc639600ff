"""A model answers after save, load, compact and undo as before, whatever finds its neighbors."""

import copy
from importlib import import_module

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.memory import INDEX_NAMES, StoreError, verify_folder
from nearwise.memory.cell_index import CellIndex
from tests.estimators.cases import QUICK, attn_knn, blobs, fit_once, reopened, same
from tests.store.folders import edited

pytest.importorskip("faiss", exc_type=ImportError)
THRESHOLD = 150  # rows from which "auto" is approximate here
X, Y = blobs(420, spread=2.0)
NEW = blobs(60, seed=7)[0]
INSTANT = {"estimator": None, "preset": "instant", "random_state": 0}
MODELS = {
    "euclidean": INSTANT,
    "cosine": INSTANT | {"metric": "cosine"},
    "a base": {
        "estimator": LogisticRegression(max_iter=200),
        "cv": 3,
        "embedder": "identity",
        **QUICK,
    },
    "held out": {"estimator": None, "cv": 0.3, "train": {"epochs": 1}, **QUICK},
}
CASES = [("a base", index) for index in INDEX_NAMES]
CASES += [(kind, "ivf-flat") for kind in MODELS if kind != "a base"]
every_case = pytest.mark.parametrize(("kind", "index"), CASES)


@pytest.fixture(autouse=True)
def _small_cells(monkeypatch):
    """Let a few hundred rows be searched as a hundred thousand are."""
    monkeypatch.setattr(import_module("nearwise.memory.make_index"), "AUTO_EXACT_BELOW", THRESHOLD)
    monkeypatch.setattr(CellIndex, "rows_per_cell", 8)
    monkeypatch.setattr(CellIndex, "min_probes", 2)


def model_of(kind, index, n=300, **changed):
    return fit_once(attn_knn(**MODELS[kind], index=index, **changed), X[:n], Y[:n])


def answers(model):
    """What searches of all spaces decide: for new rows, and for remembered ones left out."""
    parts = [model.predict_proba(NEW), model.kneighbors(NEW, 5)[1]]
    if model._fitted.holds_memory:
        parts.append(model.predict_proba(None))
    return np.concatenate([np.asarray(part, dtype=float).ravel() for part in parts])


def sealed(model):
    """Name of the index of the first space, and rows it was fitted to."""
    views = model._predictor.views
    views._index(views.specs[0])
    index = views._sealed[views.specs[0].name]
    return index.name, index.n_fitted


CHANGES = {
    "add": lambda m: m.add(X[300:305], Y[300:305]),
    "relabel": lambda m: m.relabel(m.memory_.ids[4:6], Y[[1, 2]]),
    "remove": lambda m: m.remove(m.memory_.ids[[0, 1, 17]]),
    "partial_fit": lambda m: m.partial_fit(X[305:307], Y[305:307]),
    "many more": lambda m: m.add(X[307:350], Y[307:350]),
}


@every_case
def test_a_changed_model_answers_the_same_after_save_and_load_and_as_a_copy(kind, index, tmp_path):
    model = model_of(kind, index)
    for name, change in CHANGES.items():
        change(model)
        model.save(tmp_path / "m")
        expected = answers(model)
        again = AttnKNNClassifier.load(tmp_path / "m")
        assert same(answers(again), expected), name
        assert sealed(again)[0] == sealed(model)[0], name
        assert same(answers(copy.deepcopy(model)), expected), name
    verify_folder(tmp_path / "m")
    assert same(answers(reopened(again, tmp_path / "other")), expected)


@every_case
def test_a_live_model_answers_as_the_folder_opens_before_and_after_compact(kind, index, tmp_path):
    model_of(kind, index).save(tmp_path / "m")
    with LiveModel(tmp_path / "m") as live, LiveModel(tmp_path / "m") as follower:

        def ids():
            return live.model.memory_.ids

        for name, change in (
            ("add", lambda: live.add(X[300:304], Y[300:304])),
            ("remove", lambda: live.remove(ids()[[3, 9]])),
            ("undo", lambda: live.undo(2)),
            ("relabel", lambda: live.relabel(ids()[7:8], [2])),
            ("many more", lambda: live.add(X[304:340], Y[304:340])),
            ("feedback", lambda: live.feedback(X[340:343], Y[340:343])),
        ):
            change()
            expected = answers(live.model)
            assert same(answers(AttnKNNClassifier.load(tmp_path / "m")), expected), name
            follower.catch_up()
            assert same(answers(follower.model), expected), name
        live.compact()
        assert same(answers(live.model), expected)
        follower.catch_up()
        for other in (follower.model, AttnKNNClassifier.load(tmp_path / "m")):
            assert same(answers(other), expected)
        live.remove(ids()[11:12])
        assert same(answers(AttnKNNClassifier.load(tmp_path / "m")), answers(live.model))


@pytest.mark.parametrize("index", ["auto", "ivf-flat", "hnsw"])
def test_a_full_memory_answers_the_same_after_save_and_load(index, tmp_path):
    model = model_of("a base", index, capacity=300)
    for first in range(300, 330, 5):
        model.partial_fit(X[first : first + 5], Y[first : first + 5])
    assert len(model.memory_) == 300
    assert same(answers(reopened(model, tmp_path / "m")), answers(model))


def test_auto_goes_on_with_its_index_across_the_number_of_rows_where_it_would_choose_another(
    tmp_path,
):
    model = model_of("a base", "auto", THRESHOLD - 2)
    assert sealed(model) == ("exact", THRESHOLD - 2)
    for n_new, index in ((4, "exact"), (2, "exact"), (2, "ivf-flat")):
        first = len(model.memory_)
        model.add(X[first : first + n_new], Y[first : first + n_new])
        again = reopened(model, tmp_path / "m")
        assert sealed(model)[0] == sealed(again)[0] == index
        assert same(answers(again), answers(model))
    for n_gone, index in ((5, "ivf-flat"), (2, "ivf-flat"), (2, "exact")):
        again.remove(again.memory_.ids[:n_gone])
        third = reopened(again, tmp_path / "m")
        assert (len(again.memory_), *sealed(again)[:1]) == (len(third.memory_), index)
        assert same(answers(third), answers(again))


@pytest.mark.parametrize("kind", ["a base", "held out"])
def test_queries_between_changes_decide_nothing(kind):
    queried, other = model_of(kind, "ivf-flat"), model_of(kind, "ivf-flat")
    for change in (
        lambda m: m.add(X[300:312], Y[300:312]),
        lambda m: m.remove(m.memory_.ids[20:30]),
        lambda m: m.remove(m.memory_.ids[-6:]),
        lambda m: m.add(X[320:322], Y[320:322]),
    ):
        change(queried)
        change(other)
        answers(queried)
    assert same(answers(queried), answers(other)) and sealed(queried) == sealed(other)


def test_a_folder_from_before_cells_were_kept_opens_and_is_saved(tmp_path):
    model_of("a base", "ivf-flat").save(tmp_path / "m")

    def without(tensors):
        for name in [name for name in tensors if name.startswith("index/")]:
            del tensors[name]

    old = edited(
        tmp_path / "m", tmp_path / "old", meta=lambda meta: meta.pop("indexes"), tensors=without
    )
    model = AttnKNNClassifier.load(old)
    model.add(X[300:303], Y[300:303])
    assert same(answers(reopened(model, old)), answers(model))


def test_no_row_that_was_removed_is_kept_by_what_an_index_has_learned(tmp_path):
    model = model_of("a base", "ivf-flat")
    model.remove([2])
    again = reopened(model, tmp_path / "m")
    for state in again._predictor.views.index_states().values():
        assert len(state.ids) == len(state.cells) == 299 and 2 not in state.ids


WRONG = {
    "a cell that is not there": lambda t: t["cells"].fill_(10_000),
    "a negative cell": lambda t: t["cells"].fill_(-2),
    "cells of another type": lambda t: t.update(cells=t["cells"].double()),
    "too few cells": lambda t: t.update(cells=t["cells"][:-1].clone()),
    "no cells": lambda t: t.pop("cells"),
    "no centers": lambda t: t.pop("centers"),
    "centers of another width": lambda t: t.update(centers=t["centers"][:, :-1].clone()),
    "centers of another type": lambda t: t.update(centers=t["centers"].double()),
    "centers that are not finite": lambda t: t["centers"].fill_(np.inf),
    "a mean of another width": lambda t: t.update(mean=torch.zeros(9)),
    "an array that no index has": lambda t: t.update(graph=torch.zeros(4)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_index_has_learned_is_refused_by_its_name(name, tmp_path):
    model_of("a base", "ivf-flat").save(tmp_path / "m")

    def wrong(tensors):
        part = "index/features/"
        here = {key[len(part) :]: t for key, t in tensors.items() if key.startswith(part)}
        WRONG[name](here)
        for key in [key for key in tensors if key.startswith(part)]:
            del tensors[key]
        tensors |= {part + key: t for key, t in here.items()}

    forged = edited(tmp_path / "m", tmp_path / "forged", tensors=wrong)
    with pytest.raises(StoreError, match=r"index/features") as error:
        AttnKNNClassifier.load(forged)
    assert error.value.reason == "invalid"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "auto", "n_fitted": 300},
        {"name": "ivf-flat", "n_fitted": 3},
        {"name": "ivf-flat", "n_fitted": 0},
        {"name": "exact", "n_fitted": 300},
        {"name": "ivf-flat"},
    ],
    ids=str,
)
def test_an_index_described_otherwise_than_any_is_refused(wrong, tmp_path):
    model_of("a base", "ivf-flat").save(tmp_path / "m")
    forged = edited(
        tmp_path / "m",
        tmp_path / "forged",
        meta=lambda meta: meta["indexes"].update(features=wrong),
    )
    with pytest.raises(StoreError, match="index"):
        AttnKNNClassifier.load(forged)
    forged = edited(
        tmp_path / "m",
        tmp_path / "other",
        meta=lambda meta: meta["indexes"].update(elsewhere={"name": "exact", "n_fitted": 1}),
    )
    with pytest.raises(StoreError, match="elsewhere"):
        AttnKNNClassifier.load(forged)
