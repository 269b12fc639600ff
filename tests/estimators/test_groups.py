"""Rows of a group are learned and left out together: nothing of it reaches its predictions."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedGroupKFold

from nearwise import AttnKNNClassifier, LiveModel, review
from nearwise.estimators import report_columns
from nearwise.estimators.fit.problem import given_folds, held_out_fold
from tests.estimators.cases import CHEAP, QUICK, attn_knn, logistic, reopened, same

N_GROUPS, ROWS = 24, 6


def subjects(seed=0, n_groups=N_GROUPS, first=0):
    """Rows around a center per group; the class depends on the center."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(n_groups, 4))
    y = (centers[:, 0] + 0.7 * rng.normal(size=n_groups) > 0).astype(int)
    groups = np.repeat(np.arange(n_groups), ROWS)
    X = centers[groups] + 0.05 * rng.normal(size=(len(groups), 4))
    return X, y[groups], groups + first


def grouped(**settings):
    X, y, groups = subjects()
    cheap = {"random_state": 0} if "preset" in settings else CHEAP
    return attn_knn(**{**cheap, **settings}).fit(X, y, groups=groups)


CONFIGURATIONS = {
    "neighbors alone": {"estimator": None},
    "instant": {"preset": "instant"},
    "default": {"estimator": "auto", **QUICK},
    "own base": {"estimator": logistic(), "cv": 3},
    "held out": {"estimator": None, "cv": 0.3},
    "cosine": {"estimator": None, "metric": "cosine"},
    "approximate index": {"estimator": None, "index": "ivf-flat"},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_neighbor_of_a_remembered_row_is_of_its_group(name):
    model = grouped(**CONFIGURATIONS[name])
    groups = subjects()[2]
    _, ids = model.kneighbors(None, 20)
    assert not (groups[ids] == groups[:, None]).any()
    views = model.fitted_.predictor.views
    for spec in views.specs:
        own = views.own_neighbors(spec).numpy()
        assert not (groups[own] == groups[:, None]).any()


@pytest.mark.parametrize("name", ["neighbors alone", "own base", "held out", "cosine"])
def test_labels_of_a_group_leave_the_predictions_of_its_rows_unmoved(name):
    model = grouped(**CONFIGURATIONS[name])
    before = model.predict_proba(None)
    group = np.arange(ROWS)  # the first group
    labels = model.memory_.labels[group].numpy()
    for ids in (group, group[1:], group[:1]):
        model.relabel(ids, 1 - labels[ids])
        assert np.allclose(model.predict_proba(None)[group], before[group], atol=1e-6, rtol=0)
        model.relabel(ids, labels[ids])


def test_folds_keep_groups_together_and_a_splitter_gets_them():
    X, y, groups = subjects()
    cv = StratifiedGroupKFold(3)
    model = attn_knn(**{**CHEAP, "cv": cv}).fit(X, y, groups=groups)
    assert model.report_.choice["groups"] == {"of": "group", "n": N_GROUPS}
    mixed = [(np.arange(0, 100), np.arange(100, len(y)))]
    with pytest.raises(ValueError, match="rows of one group in both parts"):
        attn_knn(**{**CHEAP, "cv": mixed}).fit(X, y, groups=groups)


@pytest.mark.parametrize("preset", ["instant", "default"])
def test_what_is_promised_holds_on_new_groups(preset):
    """Without groups left-out rows have siblings, and promise what new groups do not keep."""
    X, y, groups = subjects(1, 40)
    X_new, y_new, _ = subjects(2, 60)
    promised, kept, coverage = [], [], []
    for given in (groups, range(len(y))):
        model = AttnKNNClassifier(preset=preset, random_state=0).fit(X, y, groups=given)
        promised.append(model.report_.oof_nll)
        kept.append(log_loss(y_new, model.predict_proba(X_new)))
        sets = np.asarray(model.predict_set(X_new, confidence=0.8))
        coverage.append(sets[np.arange(len(y_new)), y_new].mean())
    assert abs(promised[0] - kept[0]) < 0.5 * abs(promised[1] - kept[1])
    assert kept[0] < kept[1]
    assert coverage[0] > 0.65 and coverage[1] < 0.5


def test_sets_and_risks_count_every_group_once():
    X, y, groups = subjects()
    y = np.where(groups == 0, 1 - y, y)
    often = np.concatenate([np.arange(len(y)), *[np.arange(ROWS)] * 10])  # the first group, larger
    rows = AttnKNNClassifier(preset="instant", random_state=0)
    rows.fit(X[often], y[often], groups=groups[often])
    judged = rows.query(X[:1]).calibration_rows()
    assert judged.truth.sum() == pytest.approx(N_GROUPS)
    assert len(judged.one_per_group().labels) == N_GROUPS
    with pytest.raises(ValueError, match=f"at least 99 groups .* there are {N_GROUPS}"):
        rows.predict_set(X[:1], confidence=0.99)
    assert "one row of each group" in rows.predict_selective(X[:1], coverage=0.9).guarantee


@pytest.mark.parametrize("estimator", [None, "auto"])
def test_a_folder_a_journal_and_a_refresh_keep_groups(tmp_path, estimator):
    X, y, groups = subjects()
    X_new, y_new, others = subjects(3, 4, first=100)
    names = pd.Series(groups.astype(str), name="patient")
    model = AttnKNNClassifier(preset="instant", estimator=estimator, random_state=0)
    model.fit(X, y, groups=names)
    again = reopened(model, tmp_path / "m")
    assert same(again.predict_proba(None), model.predict_proba(None))
    with pytest.raises(ValueError, match=r"fitted with groups \('patient'\)"):
        again.add(X_new, y_new)
    live = LiveModel(tmp_path / "m")
    live.add(X_new, y_new, groups=others.astype(float))
    live.remove([0, 1])
    live.undo(2)
    opened = LiveModel(tmp_path / "m").model
    assert same(opened.predict_proba(None), live.model.predict_proba(None))
    column = opened.memory_.columns["group"]
    assert len(column.unique()) == N_GROUPS + 4
    assert (column[-2:] == column[0]).all()  # removed rows came back, to their group
    opened.refresh()
    assert opened.report_.choice["groups"]["n"] == N_GROUPS + 4


def test_added_rows_of_a_known_group_are_no_calibration_rows():
    X, y, groups = subjects()
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y, groups=groups)
    before = len(model.query(X[:1]).calibration_rows().labels)
    model.add(X[:2] + 0.01, y[:2], groups=[0, 0])
    model.add(X[:2] + 0.01, y[:2], groups=["new", "new"])
    assert len(model.query(X[:1]).calibration_rows().labels) == before + 2


def test_a_class_of_a_single_group_is_warned_of_and_never_left_out():
    X, y, groups = subjects()
    with pytest.raises(ValueError, match="fitted without groups"):
        attn_knn(**CHEAP).fit(X, y).add(X[:2], y[:2], groups=[1, 2])
    y = np.where(groups == 3, 2, y)
    with pytest.warns(UserWarning, match="rows of a single group"):
        model = attn_knn(**CHEAP).fit(X, y, groups=groups)
    assert model.predict_proba(X).shape == (len(y), 3)


@pytest.mark.parametrize("name", ["neighbors alone", "instant", "held out"])
def test_a_group_per_row_changes_nothing(name):
    X, y, _ = subjects()
    settings = {"random_state": 0} if name == "instant" else CHEAP
    ungrouped, alone = (attn_knn(**{**settings, **CONFIGURATIONS[name]}) for _ in range(2))
    ungrouped.fit(X, y)
    alone.fit(X, y, groups=range(len(y)))
    assert same(alone.predict_proba(None), ungrouped.predict_proba(None))
    assert same(alone.predict_proba(X + 0.1), ungrouped.predict_proba(X + 0.1))
    assert alone.report_.oof_nll == ungrouped.report_.oof_nll


@pytest.mark.parametrize("width", [4, 80])  # a forest, Gaussian classes
def test_groups_without_weight_need_not_be_learned_from(width):
    X, _, groups = subjects()
    X, y = np.resize(X, (len(X), width)), np.arange(len(X)) % 2
    for n_weighted in (1, 2):
        weight = (groups < n_weighted).astype(float)
        model = AttnKNNClassifier(preset="instant", random_state=0)
        model.fit(X, y, weight, groups=groups)
        assert np.isfinite(model.predict_proba(None)).all()


def test_where_all_neighbors_are_of_one_group_the_error_says_so():
    X, _, groups = subjects()
    y = np.arange(len(X)) % 2
    with pytest.raises(ValueError, match=r"are of one group, .* at least 3"):
        attn_knn(**CHEAP).fit(X, y, groups=groups % 2)
    model = attn_knn(preset="instant", estimator=None).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match=f"All {ROWS} rows that may be found are of one group"):
        model.remove(np.flatnonzero(groups > 0))
    assert len(model.memory_) == len(y)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.7, 0.9])
def test_a_share_holds_out_whole_groups_about_as_many_rows_and_no_class_alone(share):
    _, y, groups = subjects()
    for seed in range(3):
        labels = np.where(groups == 5 * seed, 2, y)
        train, held_out = held_out_fold(labels, share, seed, groups)
        assert not set(groups[train]) & set(groups[held_out])
        assert set(labels[train]) == {0, 1, 2} and not (labels[held_out] == 2).any()
        assert np.array_equal(np.union1d(train, held_out), np.arange(len(y)))
        assert abs(len(held_out) / len(y) - share) < 0.1


# --- copies ---------------------------------------------------------------------------------------


def noisy(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, (X[:, 0] + X[:, 1] + rng.normal(size=n) > 0).astype(int)


def test_copies_of_rows_are_groups_and_promise_no_more_than_new_rows_keep():
    X, y = noisy()
    X_new, y_new = noisy(1_000, 1)
    twice = np.concatenate([np.arange(200)] * 2)
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X[twice], y[twice])
    assert model.report_.choice["groups"] == {"of": "copies", "n": 200}
    kept = log_loss(y_new, model.predict_proba(X_new))
    assert model.report_.oof_nll > kept - 0.1
    apart = AttnKNNClassifier(preset="instant", random_state=0)
    apart.fit(X[twice], y[twice], groups=range(400))
    assert apart.report_.oof_nll < kept - 0.3


def test_a_review_finds_copies_though_they_are_groups():
    X, y = noisy(60)
    of_copies = y.copy()
    of_copies[3] = 1 - y[3]
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(np.concatenate([X, X]), np.concatenate([y, of_copies]))
    found = review(model).findings()
    copies = found[found["kind"] == "copy"]
    assert set(copies["id"]) == set(range(120))
    assert set(copies["id"][:2]) == {3, 63} and "another label" in copies["what"].iloc[0]
    assert "copies" in model.memory_.columns


@pytest.mark.parametrize(
    "cv", [KFold(5), KFold(5, shuffle=True, random_state=0), "latest"], ids=str
)
def test_given_folds_learn_from_no_copy_of_a_row_that_they_hold_out(cv):
    X, y = noisy()
    twice = np.concatenate([np.arange(200)] * 2)
    model = attn_knn(**{**CHEAP, "cv": cv}).fit(X[twice], y[twice])
    X_new, y_new = noisy(1_000, 1)
    assert model.report_.oof_nll > log_loss(y_new, model.predict_proba(X_new)) - 0.15
    with pytest.raises(ValueError, match="split 1 of cv learns some class from copies"):
        attn_knn(**{**CHEAP, "cv": KFold(2)}).fit(X[twice], y[twice])


@pytest.mark.parametrize("kind", ["none", "few", "answers", "one column"])
def test_rows_that_are_equal_by_chance_are_no_groups(kind):
    rng = np.random.default_rng(0)
    X, y = noisy()
    if kind == "few":
        X[:4] = X[4:8]
    elif kind == "answers":
        X = rng.integers(0, 3, (200, 4)).astype(float)
    elif kind == "one column":
        X = rng.integers(0, 50, (200, 1)).astype(float)
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y)
    assert "groups" not in model.report_.choice


def test_copies_with_text_gaps_and_left_out_ids_are_copies():
    X, y = noisy(100)
    table = pd.DataFrame(X, columns=list("abcde")).round(3)
    table.loc[::7, "a"] = np.nan
    table["kind"] = np.random.default_rng(0).choice(["x", "y", None], 100)
    table = pd.concat([table, table], ignore_index=True).assign(id=range(1000, 1200))
    problem = AttnKNNClassifier(preset="instant", columns={"id": "left out"}, random_state=0)
    found = problem.fit(table, np.concatenate([y, y])).report_.choice["groups"]
    assert found == {"of": "copies", "n": 100}


def test_an_added_copy_joins_the_group_of_the_row_it_equals(tmp_path):
    X, y = noisy()
    twice = np.concatenate([np.arange(200)] * 2)
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X[twice], y[twice])
    model.add(X[:1], y[:1])
    _, ids = model.kneighbors(None, 5)
    assert not set(ids[0].tolist()) & {0, 200, 400}
    assert same(reopened(model, tmp_path / "m").predict_proba(None), model.predict_proba(None))


# --- columns that name groups, and times ----------------------------------------------------------


def test_columns_that_look_like_the_names_of_groups_are_reported():
    X, _, groups = subjects(0, 40)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(X, columns=list("abcd"))
    table["who"] = [f"p{one}" for one in groups]
    table["site_id"] = rng.integers(0, 30, len(table))
    found = {one.name: one for one in report_columns(table) if one.change == "groups"}
    assert set(found) == {"who", "site_id"}
    assert "nearly alike" in found["who"].reason and "an id by its name" in found["site_id"].reason
    with pytest.warns(UserWarning, match=r"'who' .* fit\(groups=X\['who'\]\)"):
        AttnKNNClassifier(preset="instant").fit(table, (X[:, 0] > 0).astype(int))
    settled = report_columns(table, {"who": "category", "site_id": "number"})
    assert not any(one.change == "groups" for one in settled)


def test_the_latest_rows_are_held_out_and_again_after_a_refresh(tmp_path):
    X, y = noisy(150)
    model = attn_knn(**{**CHEAP, "cv": "latest", "estimator": logistic()}).fit(X, y)
    assert model.report_.choice["held_out"] == 30
    judged = model.fitted_.predictor.judged
    assert judged[-30:].all() and not judged[:-30].any()
    again = reopened(model, tmp_path / "m")
    assert again.cv == "latest"
    again.add(X[:50] + 5, y[:50])
    again.refresh()
    assert again.report_.choice["held_out"] == 40
    few = attn_knn(**{**CHEAP, "cv": "latest"}).fit(X[:60], y[:60])
    assert few.report_.choice["held_out"] == 20  # a fifth is too few
    with pytest.raises(ValueError, match="fewer than 2 known classes"):
        attn_knn(**{**CHEAP, "cv": "latest"}).fit(X, np.sort(y))


def test_the_latest_rows_of_a_group_are_held_out_together_or_not_at_all():
    _, y, groups = subjects()
    y = np.where(np.arange(len(y)) >= len(y) - 3, 2, y)  # a new class, in a group of others too
    ((train, held_out),) = given_folds("latest", None, y, groups)
    assert not set(groups[train]) & set(groups[held_out])


def test_a_stream_whose_latest_rows_are_of_one_class_goes_on():
    """It is never refreshed by itself, so that what a refresh would refuse does not matter."""
    X, y = noisy(150)
    model = attn_knn(**{**CHEAP, "cv": "latest"}).partial_fit(X, y)
    for step in (5, 10):
        model.partial_fit(X[:60] + step, np.zeros(60, dtype=int))
    assert len(model.memory_) == 270
