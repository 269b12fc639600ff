"""A fitted model is safe to change while it is asked, and a change is whole or not there."""

import copy
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nearwise.estimators import AttnKNNClassifier, Query
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.memory_views import MemoryViews
from tests.estimators.cases import (
    CHEAP,
    QUICK,
    attn_knn,
    blobs,
    fitted,
    logistic,
    reopened,
    same,
    table,
    together,
)

SOURCE = str(Path(sys.modules["nearwise"].__file__).parent)
X, Y = blobs(150)
NEW = X[-20:] + 0.05


@pytest.fixture
def model():
    return fitted(X[:-20], Y[:-20], estimator=logistic())


CHANGES = {
    "add": lambda m: m.add(NEW[:4], Y[:4]),
    "add a class": lambda m: m.add(NEW[:4] + 9, [7] * 4),
    "remove": lambda m: m.remove([0, 5, 9]),
    "relabel": lambda m: m.relabel([1, 2], [2, 2]),
    "partial_fit": lambda m: m.partial_fit(NEW, Y[:20]),
    "refresh": lambda m: m.remove([3]) or m.refresh(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_query_answers_from_the_version_it_was_asked_of(model, change):
    query, before = model.query(NEW, explain=3), model.predict_proba(NEW)
    bank, n = model.memory_, len(model.memory_)
    shown = model.explain(NEW, 3)
    CHANGES[change](model)
    assert not same(model.predict_proba(NEW), before)
    assert same(query.proba(), before)
    assert len(bank) == n
    for one, other in zip(query.explanations(), shown, strict=True):
        assert [n.id for n in one.neighbors] == [n.id for n in other.neighbors]
        assert same(one.proba, other.proba)
    assert len(query.sets()) == len(query.novelty_p_value()) == len(NEW)


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_changes_alone(model, change):
    before, other = model.predict_proba(NEW), copy.deepcopy(model)
    CHANGES[change](other)
    assert same(model.predict_proba(NEW), before)
    assert same(model.predict_proba(None), copy.deepcopy(model).predict_proba(None))


class Injected(Exception):
    """Stands for whatever can go wrong at a line."""


def lines_of(change, model, stop_at=None):
    """Run a change, count the lines of nearwise it passes, and fail at one of them."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            count += 1
            if count == stop_at:
                raise Injected
        return trace

    # What rises on the very line of a "with torch.no_grad()" as it ends can skip its exit.
    torch.set_grad_enabled(True)
    sys.settrace(trace)
    try:
        change(model)
    finally:
        sys.settrace(None)
    return count


STEPS = [(change, 37) for change in ("add", "remove", "relabel")]
SMALL_STEPS = [
    (change, 10_007 if change == "refresh" else 1) for change in CHANGES
]  # a fit is long


@pytest.mark.parametrize(
    ("change", "step"),
    [*STEPS, *(pytest.param(*steps, marks=pytest.mark.slow) for steps in SMALL_STEPS)],
)
def test_a_failure_at_any_line_of_a_change_leaves_the_old_model(model, change, step):
    if change == "refresh":
        model.remove([3])  # a version of its own
    change = AttnKNNClassifier.refresh if change == "refresh" else CHANGES[change]
    before, version = model.predict_proba(NEW), model._fitted
    changed = copy.deepcopy(model)
    n_lines = lines_of(change, changed)
    after = changed.predict_proba(NEW)
    assert n_lines > 100
    for stop_at in range(1, n_lines, step):
        try:
            lines_of(change, model, stop_at)
        except Injected:
            if model._fitted is not version:  # on the way out, after the assignment: it is whole
                assert same(model.predict_proba(NEW), after)
                model.fitted_ = version
            continue
        model.fitted_ = version  # the line after the one that published it
    assert same(model.predict_proba(NEW), before)
    changed = copy.deepcopy(model)
    change(changed)
    change(model)
    assert same(model.predict_proba(NEW), changed.predict_proba(NEW))


@pytest.mark.parametrize(
    ("seconds", "n_readers", "n_writers"),
    [(2, 2, 1), pytest.param(60, 4, 2, marks=pytest.mark.slow)],
)
def test_readers_and_writers_work_at_once(seconds, n_readers, n_writers, tmp_path):
    """Every answer is that of a version that was published."""
    model = fitted(X[:-20], Y[:-20], estimator=logistic())
    versions = [model._fitted]
    answers, over = [], threading.Event()
    writing = threading.Lock()

    def read(place):
        rows = NEW[place : place + 5]
        while not over.is_set():
            first = len(versions) - 1
            proba = model.predict_proba(rows)
            shown = model.explain(rows[:1], 2)[0]
            last = len(versions)
            answers.append((place, first, last, proba))
            assert len(shown.neighbors) == 2

    def write(place):
        rng = np.random.default_rng(place)
        mine = []
        while not over.is_set():
            with writing:  # so that versions are noted in their order
                if len(mine) > 6:
                    model.remove(mine[:3])
                    del mine[:3]
                elif mine and rng.random() < 0.3:
                    model.relabel(mine[:1], [int(rng.integers(3))])
                else:
                    mine += model.add(X[:2] + rng.normal(size=(2, 4)), Y[:2]).tolist()
                versions.append(model._fitted)
            time.sleep(0.002)

    threading.Timer(seconds, over.set).start()
    readers = [partial(read, place) for place in range(n_readers)]
    together(*readers, *(partial(write, place) for place in range(n_writers)))
    known = {}
    for place, first, last, proba in answers:
        for number in range(first, min(last + 1, len(versions))):
            if (place, number) not in known:
                encoded = versions[number].encoded(NEW[place : place + 5])
                known[place, number] = Query(versions[number], encoded).proba()
        candidates = [known[place, n] for n in range(first, min(last + 1, len(versions)))]
        assert any(same(proba, one) for one in candidates)
    assert same(reopened(model, tmp_path / "model").predict_proba(NEW), model.predict_proba(NEW))
    assert min(len(versions), len(answers)) > (3 if seconds == 2 else 50)


def test_two_writers_lose_nothing(model):
    n = len(model.memory_)

    def add(place):
        for row in range(5):
            model.add(NEW[place * 5 + row][None], [0])

    together(*(partial(add, place) for place in range(4)))
    bank = model.memory_
    assert len(bank) == len(bank.labels) == len(model._fitted.rows) == n + 20
    assert len(set(bank.ids.tolist())) == n + 20


def test_all_answers_come_from_one_pass_over_the_rows(monkeypatch):
    frame, y = table(120)
    model = fitted(frame[:100], y[:100], estimator=logistic())
    rows = frame[100:]
    model.query(rows).selection(coverage=0.5)  # calibration rows are kept
    passes, searches = [], []
    retrieve, search = ClassPredictor.retrieve, MemoryViews.search

    def counted(predictor, views):
        passes.append(len(views[0]))
        return retrieve(predictor, views)

    def counted_search(views, *arguments, **more):
        searches.append(arguments[0].name)
        return search(views, *arguments, **more)

    monkeypatch.setattr(ClassPredictor, "retrieve", counted)
    monkeypatch.setattr(MemoryViews, "search", counted_search)
    model.predict_proba(rows)
    plain = len(searches)
    query = model.query(rows, explain=5)
    everything = (
        query.proba(),
        query.parts,
        query.sets(),
        query.selection(coverage=0.8),
        query.novelty_p_value(),
        query.explanations(trust=True),
    )
    assert len(everything) == 6
    assert passes == [20, 20]
    assert len(searches) == 2 * plain


def test_one_query_says_what_the_methods_say():
    frame, y = table(140)
    model = fitted(frame[:110], y[:110], estimator=logistic(), **QUICK)
    rows = frame[110:]
    query = model.query(rows, explain=4)
    assert same(query.proba(), model.predict_proba(rows))
    assert same(
        query.sets(0.8, method="aps", seed=1), model.predict_set(rows, 0.8, method="aps", seed=1)
    )
    assert same(query.novelty_score("entropy"), model.novelty_score(rows, "entropy"))
    assert same(query.novelty_p_value(), model.novelty_p_value(rows))
    chosen, alone = query.selection(coverage=0.6), model.predict_selective(rows, coverage=0.6)
    assert same(chosen.accepted, alone.accepted) and chosen.threshold == alone.threshold
    late = model.query(rows)  # what was not named beforehand costs a pass, and no more
    assert same(late.sets(), model.predict_set(rows))
    assert same(late.novelty_p_value("entropy"), model.novelty_p_value(rows, "entropy"))


def test_explanations_that_were_not_named_beforehand_show_ten_neighbors(model):
    late = model.query(NEW).explanations()
    for one, other in zip(late, model.explain(NEW, 10), strict=True):
        assert [n.id for n in one.neighbors] == [n.id for n in other.neighbors]
    assert len(model.query(None).explanations()) == len(model.memory_)


@pytest.mark.parametrize("ask", ["novelty_score", "novelty_p_value", "sets"])
def test_remembered_rows_are_not_set_against_themselves(model, ask):
    with pytest.raises(ValueError, match="Give new rows as X"):
        getattr(model.query(None), ask)()
    with pytest.raises(ValueError, match="Give new rows as X"):
        model.explain(None, 3, trust=True)


def test_a_pass_that_was_interrupted_is_made_again(model, monkeypatch):
    query = model.query(NEW)
    before = query.novelty_score()
    retrieve = ClassPredictor.retrieve

    def interrupted(predictor, views):
        raise KeyboardInterrupt

    monkeypatch.setattr(ClassPredictor, "retrieve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        query.explanations()
    monkeypatch.setattr(ClassPredictor, "retrieve", retrieve)
    assert same(query.novelty_score(), before)
    assert same(query.sets(), model.predict_set(NEW))


def test_a_fit_that_fails_leaves_the_old_model(model):
    before = model.predict_proba(NEW)
    with pytest.raises(ValueError, match="class"):
        model.fit(np.zeros((5, 9)), np.zeros(5))
    assert model.n_features_in_ == 4
    assert same(model.predict_proba(NEW), before)


def test_a_refit_shows_its_columns_when_it_is_published_and_readers_go_on(monkeypatch):
    model = fitted(pd.DataFrame(X, columns=list("abcd")), Y)
    before = model.predict_proba(NEW)
    known = []
    fit_problem = AttnKNNClassifier._fit_problem

    def asked_meanwhile(*arguments):
        known.append((model.n_features_in_, model.feature_names_in_.tolist()))
        assert same(model.predict_proba(NEW), before)
        return fit_problem(*arguments)

    monkeypatch.setattr(AttnKNNClassifier, "_fit_problem", staticmethod(asked_meanwhile))
    model.fit(X[:, :3], Y)
    assert known == [(4, list("abcd"))]
    assert model.n_features_in_ == 3 and not hasattr(model, "feature_names_in_")


def test_a_first_batch_with_declared_classes_is_published_whole(monkeypatch):
    from nearwise.estimators.online import changes

    def fails(*arguments):
        raise Injected

    model = attn_knn(**CHEAP)
    monkeypatch.setattr(changes, "with_classes", fails)
    with pytest.raises(Injected):
        model.partial_fit(X, Y, classes=[0, 1, 2, 3])
    monkeypatch.undo()
    assert not hasattr(model, "classes_")
    model.partial_fit(X, Y, classes=[0, 1, 2, 3])
    assert model.classes_.tolist() == [0, 1, 2, 3] and len(model.memory_) == len(X)


def test_nearest_rows_are_found_without_asking_base_or_networks(monkeypatch):
    frame, y = table(120)
    model = fitted(frame[:100], y[:100], estimator=logistic())
    nearest = model.kneighbors(frame[100:], 3)
    monkeypatch.setattr(type(model._predictor.row_models), "__call__", pytest.fail)
    again = model.kneighbors(frame[100:], 3)
    assert all(same(one, other) for one, other in zip(nearest, again, strict=True))
    assert len(model.keys(frame[100:])) == 20


def test_remembered_rows_of_every_type_come_back_as_they_were_given():
    n = 24
    day = pd.Timestamp("2024-02-29")
    frame = pd.DataFrame(
        {
            "whole": np.arange(n),
            "nullable": pd.array([None, *range(1, n)], dtype="Int64"),
            "gaps": [np.nan, *np.linspace(0, 1, n - 1)],
            "flag": [True, False] * (n // 2),
            "town": pd.Categorical(["Rome", "Oslo"] * (n // 2)),
            "day": [day + pd.Timedelta(days=7 * i) for i in range(n)],
        }
    )
    model = fitted(frame, np.arange(n) % 2)
    found = {row["whole"]: row for row, _ in model._fitted.remembered(list(range(n)))}
    assert found[3] == {
        "whole": 3,
        "nullable": 3,
        "gaps": pytest.approx(2 / (n - 2)),
        "flag": False,
        "town": "Oslo",
        "day": str(day + pd.Timedelta(days=21)),
    }
    assert found[0]["nullable"] is None and np.isnan(found[0]["gaps"])
    assert [type(value) for value in found[3].values()] == [int, int, float, bool, str, str]
