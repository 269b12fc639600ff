"""Several targets of the same rows: one model per target, changed and saved together."""

import os
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score

from nearwise import AttnKNNClassifier, AttnKNNRegressor
from nearwise.estimators.fit.beside import stratified
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.opening import load_any
from nearwise.memory import StoreError
from nearwise.metrics import evaluate_labels

X, Y = make_multilabel_classification(260, 10, n_classes=3, random_state=1)
NAMES = ["beach", "city hall", "a/b"]
TABLE = pd.DataFrame(Y, columns=NAMES)
TRAIN, TEST = slice(0, 200), slice(200, None)


def instant(estimator=None, **options):
    return AttnKNNClassifier(estimator=estimator, preset="instant", random_state=0, **options)


@pytest.fixture(scope="module")
def fitted():
    return instant(estimator="auto").fit(X[TRAIN], TABLE[TRAIN])


def test_results_have_scikit_learns_shapes(fitted):
    proba = fitted.predict_proba(X[TEST])
    assert [one.shape for one in proba] == [(60, 2)] * 3
    assert fitted.predict(X[TEST]).shape == (60, 3)
    assert fitted.predict(X[TEST]).dtype == Y.dtype
    assert [one.tolist() for one in fitted.classes_] == [[0, 1]] * 3
    assert fitted.target_names_ == NAMES
    subset = (fitted.predict(X[TEST]) == Y[TEST]).all(axis=1).mean()
    assert fitted.score(X[TEST], Y[TEST]) == pytest.approx(subset)
    assert len(fitted.estimators_) == 3
    assert (fitted.estimators_[1].predict_proba(X[TEST]) == proba[1]).all()


@pytest.mark.parametrize("given", [csr_matrix(Y), Y.tolist(), Y.astype(bool), TABLE])
def test_targets_may_be_given_in_any_container(given):
    train = given.iloc[TRAIN] if isinstance(given, pd.DataFrame) else given[TRAIN]
    found, wanted = (instant().fit(X[TRAIN], y).predict_proba(X[TEST]) for y in (train, Y[TRAIN]))
    for one, other in zip(found, wanted, strict=True):
        assert (one == other).all()


def test_probabilities_beat_the_shares_of_the_labels(fitted):
    proba = np.column_stack([one[:, 1] for one in fitted.predict_proba(X[TEST])])
    found = evaluate_labels(Y[TEST], proba)
    shares = evaluate_labels(Y[TEST], np.tile(Y[TRAIN].mean(axis=0), (60, 1)))
    assert found["macro_brier"] < 0.9 * shares["macro_brier"]


def test_the_default_preset_shares_folds_and_forests():
    model = AttnKNNClassifier(random_state=0, settings={"head": {"epochs": 1}})
    model.fit(X[TRAIN], TABLE[TRAIN])
    forests = [
        one.fitted_.predictor.row_models.base.candidates[0].folds[0] for one in model.estimators_
    ]
    arrays = [one.to_arrays() for one in forests]
    assert all(one["left"] is arrays[0]["left"] for one in arrays)
    assert not np.array_equal(arrays[0]["leaf_class"], arrays[1]["leaf_class"])


def test_columns_may_have_other_numbers_of_classes():
    colors = np.array(["red", "green", "blue"])[np.arange(200) % 3]
    mixed = pd.DataFrame({"color": colors, "label": Y[TRAIN, 0]})
    model = instant().fit(np.column_stack([X[TRAIN], np.arange(200) % 3]), mixed)
    proba = model.predict_proba(np.column_stack([X[TEST], np.arange(60) % 3]))
    assert [one.shape[1] for one in proba] == [3, 2]
    predicted = model.predict(np.column_stack([X[TEST], np.arange(60) % 3]))
    assert predicted.dtype == object
    assert set(predicted[:, 0]) <= {"red", "green", "blue"}
    with pytest.raises(ValueError, match="two classes"):
        model.predict_set(np.column_stack([X[TEST], np.arange(60) % 3]))


def test_changes_reach_every_target_or_none(fitted):
    model = instant().fit(X[TRAIN], TABLE[TRAIN])
    ids = model.add(X[200:210], Y[200:210])
    assert ids.tolist() == list(range(200, 210))
    model.remove([0, 5])
    model.relabel([1], 1 - Y[1:2])
    held = [one.bank.ids.tolist() for one in model.fitted_.models]
    assert held[0] == held[1] == held[2]
    assert len(held[0]) == 208
    before = model.fitted_
    with pytest.raises(ValueError, match="'a/b'"):
        model.add(X[:1], pd.DataFrame([[0, 1, "x"]], columns=NAMES))
    assert model.fitted_ is before


def test_targets_of_new_rows_are_matched_by_name():
    model, other = (instant().fit(X[TRAIN], TABLE[TRAIN]) for _ in range(2))
    model.add(X[TEST], TABLE[TEST][NAMES[::-1]])
    other.add(X[TEST], Y[TEST])
    assert (model.predict(X) == other.predict(X)).all()
    with pytest.raises(ValueError, match="lacks 'a/b'"):
        model.add(X[TEST], TABLE[TEST][NAMES[:2]])
    with pytest.raises(ValueError, match="3 targets"):
        model.add(X[TEST], Y[TEST, 0])
    with pytest.raises(ValueError, match="MultiLabelBinarizer"):
        model.add(X[:2], [["a"], ["b", "c"]])


def test_a_saved_model_comes_back_with_every_target(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = load_any(tmp_path / "model")
    for one, other in zip(again.predict_proba(X), fitted.predict_proba(X), strict=True):
        assert (one == other).all()
    assert again.target_names_ == NAMES
    single = load_any(tmp_path / "model" / "beach")
    assert (single.predict_proba(X) == fitted.predict_proba(X)[0]).all()
    assert sorted(one.name for one in (tmp_path / "model").iterdir() if one.is_dir()) == [
        "beach",
        "city hall",
        "target-2",
    ]
    again.add(X[TEST], Y[TEST])
    again.save(tmp_path / "model")
    assert load_any(tmp_path / "model").fitted_.n_remembered == 260
    assert os.listdir(tmp_path) == ["model"]
    with pytest.raises(StoreError, match="AttnKNNClassifier"):
        AttnKNNRegressor.load(tmp_path / "model")


def test_an_interrupted_change_is_told_and_not_built_on(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    one = load_any(tmp_path / "model" / "beach")
    one.add(X[200:201], [1])
    one.save(tmp_path / "model" / "beach")
    with pytest.warns(UserWarning, match="do not remember the same rows"):
        torn = load_any(tmp_path / "model")
    assert torn.predict(X).shape == Y.shape
    with pytest.raises(ValueError, match="Repeat the change"):
        torn.remove([0])


def test_a_save_does_not_undo_the_changes_of_others(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    mine = load_any(tmp_path / "model")
    theirs = load_any(tmp_path / "model" / "beach")
    theirs.relabel([0], [1 - Y[0, 0]])
    theirs.save(tmp_path / "model" / "beach")
    with pytest.raises(StoreError, match="since it was loaded"):
        mine.save(tmp_path / "model")
    mine.save(tmp_path / "model", overwrite=True)


def test_label_sets_hold_the_wanted_share_of_labels(fitted):
    rng, found = np.random.default_rng(0), []
    for _ in range(5):
        order = rng.permutation(260)
        model = instant().fit(X[order[:150]], Y[order[:150]])
        sets, true = model.predict_set(X[order[150:]], 0.8), Y[order[150:]] == 1
        found.append(((sets & true).sum(1) / np.maximum(true.sum(1), 1))[true.any(1)].mean())
    assert np.mean(found) > 0.74
    sets = fitted.predict_set(X[TEST], 0.8)
    assert {label for held in sets.labels() for label in held} <= set(NAMES)
    assert fitted.predict_set(X[TEST], 0.95).sum() >= sets.sum()
    with pytest.raises(ValueError, match="method"):
        fitted.predict_set(X[TEST], method="aps")


def test_a_stream_may_have_several_targets():
    model = instant().partial_fit(X[:100], TABLE[:100])
    model.partial_fit(X[100:120], TABLE[100:120])
    assert model.fitted_.n_remembered == 120
    with pytest.raises(ValueError, match="classes of 2 targets"):
        instant().partial_fit(X[:100], Y[:100], classes=[[0, 1], [0, 1]])


def test_numbers_as_several_targets(tmp_path):
    targets = X[:, :2] + np.array([0.5, 100.5])
    model = AttnKNNRegressor(preset="instant", random_state=0).fit(X[TRAIN], targets[TRAIN])
    assert model.predict(X[TEST]).shape == (60, 2)
    assert model.predict_interval(X[TEST]).shape == (60, 2, 2)
    assert model.predict_quantiles(X[TEST], [0.1, 0.5, 0.9]).shape == (60, 2, 3)
    assert model.crps(X[TEST], targets[TEST]).shape == (60, 2)
    assert model.score(X[TEST], targets[TEST]) > 0.5
    model.partial_fit(X[TEST], targets[TEST])
    model.save(tmp_path / "model")
    again = load_any(tmp_path / "model")
    assert (again.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize(
    ("y", "why"),
    [
        ([["a"], ["b", "c"]] * 100, "MultiLabelBinarizer"),
        (Y[TRAIN] * np.array([1, 0, 1]), "1 of 3 targets have the same label in all 200 rows: '1'"),
        (np.zeros((200, 2, 2)), "shape"),
        (pd.DataFrame(Y[TRAIN], columns=["a", "a", "b"]), "occur more than once"),
    ],
)
def test_unusable_targets_are_named(y, why):
    with pytest.raises(ValueError, match=why):
        instant().fit(X[TRAIN], y)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("method", ["predict_proba", "predict", "explain", "novelty_p_value"])
def test_rows_are_encoded_once_for_all_targets(fitted, is_loaded, method, tmp_path, monkeypatch):
    model = fitted
    if is_loaded:
        fitted.save(tmp_path / "m")
        model = AttnKNNClassifier.load(tmp_path / "m")
    alone = [getattr(one, method)(X[TEST]) for one in model.estimators_]
    encoded, transform = [], TableEncoder.transform

    def counted(self, rows):
        encoded.append(len(rows))
        return transform(self, rows)

    monkeypatch.setattr(TableEncoder, "transform", counted)
    found = getattr(model, method)(X[TEST])
    assert encoded == [60]
    getattr(model, method)(X[TEST])
    assert encoded == [60, 60]  # nothing is kept for the next call
    found = found.T if method == "predict" else found
    if method == "explain":
        found, alone = ([[e.proba for e in one] for one in two] for two in (found, alone))
    np.testing.assert_array_equal(found, alone)


def test_all_targets_of_one_label_are_named_before_any_fit():
    y = TABLE[TRAIN].assign(**{"city hall": 0, "a/b": 1})
    with pytest.raises(ValueError, match=r"2 of 3 targets .* in all 200 rows: 'city hall', 'a/b'"):
        instant().fit(X[TRAIN], y)


def test_a_capacity_does_not_go_with_several_targets():
    with pytest.raises(ValueError, match="capacity"):
        instant(settings={"capacity": 100}).fit(X[TRAIN], Y[TRAIN])


def test_what_a_model_of_one_target_has_is_found_in_its_estimators(fitted):
    with pytest.raises(AttributeError, match="estimators_"):
        fitted.fitted_.predictor  # noqa: B018
    assert (pickle.loads(pickle.dumps(fitted)).predict(X) == fitted.predict(X)).all()
    assert [len(one) for one in fitted.explain(X[:2])] == [2, 2, 2]
    assert fitted.novelty_p_value(X[:4])[0].shape == (4,)
    assert "AttnKNNClassifier" in fitted._repr_html_()


def test_every_fold_has_rows_of_every_label():
    rng = np.random.default_rng(0)
    labels = (rng.random((300, 12)) < rng.uniform(0.03, 0.5, 12)).astype(int)
    fold = stratified(labels, 5, 0)
    per_fold = np.stack([labels[fold == one].sum(axis=0) for one in range(5)])
    assert (per_fold.max(axis=0) - per_fold.min(axis=0) <= 0.35 * labels.sum(axis=0) + 2).all()
    assert (per_fold > 0).all()


def test_metrics_of_labels_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, proba = rng.integers(0, 2, (50, 4)), rng.random((50, 4))
    found = evaluate_labels(truth, proba)
    brier = [brier_score_loss(truth[:, i], proba[:, i]) for i in range(4)]
    assert found["macro_brier"] == pytest.approx(np.mean(brier))
    assert found["mean_average_precision"] == pytest.approx(
        average_precision_score(truth, proba, average="macro")
    )
    assert found["micro_f1"] == pytest.approx(f1_score(truth, proba >= 0.5, average="micro"))
    for wrong in (proba[:, :3], proba + 1, np.full((50, 4), np.nan)):
        with pytest.raises(ValueError, match="proba"):
            evaluate_labels(truth, wrong)
