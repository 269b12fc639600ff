"""A class with a single row: remembered, warned of, and never left out of a fit."""

import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

from nearwise import AttnKNNClassifier
from nearwise.estimators.fit.problem import cross_fit_folds
from tests.estimators.cases import CHEAP, attn_knn, blobs, logistic, reopened, sums_to_one
from tests.estimators.image_cases import BRIEF, patches

ROWS, COMMON = blobs(60)
# One class before, one between and one after the others, so that no column is in its old place.
LONE = {4: "aa", 30: "bb", 59: "zz"}
LABELS = np.array([LONE.get(row, "abc"[label]) for row, label in enumerate(COMMON)])
TWO = np.where(np.arange(60) == 7, "rare", "usual")

FITS = {
    "instant": {"preset": "instant"},
    "instant without a base": {"preset": "instant", "estimator": None},
    "cross-fit": {"cv": 3},
    "cross-fit without a base": {"estimator": None, "cv": 3},
    "base of one's own": {"estimator": logistic(), "cv": 3},
    "wrong labels estimated": {"cv": 3, "label_noise": "auto"},
    "wrong labels known": {"cv": 3, "label_noise": 0.1},
    "uniform classes": {"preset": "instant", "class_prior": "uniform"},
    "per class": {"estimator": None, "cv": 3, "calibration": "per-class"},
    "rows held out": {"cv": 0.4, "embedder": "identity"},
    "capacity": {"preset": "instant", "capacity": 40},
}


@pytest.mark.parametrize(
    "labels", [LABELS, pytest.param(TWO, marks=pytest.mark.slow)], ids=["six", "two classes"]
)
@pytest.mark.parametrize("case", FITS)
def test_a_class_with_one_row_is_remembered_in_its_place(case, labels, tmp_path):
    model = attn_knn(random_state=0, **FITS[case])
    model.fit(ROWS, labels)
    proba = model.predict_proba(ROWS)
    assert model.classes_.tolist() == sorted(set(labels))
    assert proba.shape == (60, len(model.classes_)) and sums_to_one(proba)
    remembered = model.classes_[model.memory_.labels.numpy()]
    assert set(remembered) == set(labels)  # held out, it would not be found
    assert (remembered == labels[model.memory_.ids.numpy()]).all()
    assert (reopened(model, tmp_path / "m").predict_proba(ROWS) == proba).all()


def test_the_warning_names_the_classes_and_what_is_done():
    with pytest.warns(
        UserWarning, match=r"3 classes have a single row \('aa', 'bb', 'zz'\).*memory"
    ):
        attn_knn(preset="instant").fit(ROWS, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attn_knn(preset="instant").fit(ROWS, COMMON)


def test_folds_hold_out_every_row_but_those_alone_in_their_class():
    codes = np.unique(LABELS, return_inverse=True)[1]
    folds = cross_fit_folds(codes, 5, 0)
    held_out = np.concatenate([rows for _, rows in folds])
    assert sorted(held_out) == sorted(set(range(60)) - set(LONE))
    assert all(set(LONE) <= set(train) for train, _ in folds)
    assert all(len(np.intersect1d(*fold)) == 0 for fold in folds)


def test_a_lone_row_does_not_make_predictions_less_sure():
    """Its class cannot be predicted without it: a loss of log(1000) would count among 60."""
    common = attn_knn(**CHEAP).fit(ROWS, COMMON)
    lone = attn_knn(**CHEAP).fit(ROWS, np.where(np.arange(60) == 4, 9, COMMON))
    assert lone.report_.temperature <= common.report_.temperature
    assert lone.report_.oof_nll < common.report_.oof_nll + np.log(1000) / 60 / 2


@pytest.mark.parametrize("weight", [np.linspace(0.1, 2, 60), np.where(np.arange(60) == 4, 0, 1)])
def test_weighted_rows_may_be_alone_in_their_class(weight):
    model = attn_knn(**CHEAP).fit(ROWS, LABELS, sample_weight=weight)
    assert sums_to_one(model.predict_proba(ROWS))


def test_images_may_be_alone_in_their_class():
    images, labels = patches(90)
    labels = np.where(np.arange(90) == 9, "left", labels)
    model = attn_knn(**BRIEF).fit(images, labels)
    assert model.classes_.tolist() == ["down", "left", "up"]
    assert 9 in model.memory_.ids and sums_to_one(model.predict_proba(images))


def test_cross_validation_scores_every_fold_of_rare_classes():
    """Classes of 1, 2 and 3 rows, as in UCI's ecoli, are in some folds only."""
    y = COMMON.copy()
    y[[3]], y[[10, 20]], y[[11, 30, 50]] = 5, 6, 7
    model = AttnKNNClassifier(preset="instant", random_state=0)
    assert np.isfinite(cross_val_score(model, ROWS, y, cv=5)).all()
    search = GridSearchCV(model, {"n_neighbors": [4, 8]}, cv=5).fit(ROWS, y)
    proba = cross_val_predict(model, ROWS, y, cv=5, method="predict_proba")
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert proba.shape == (60, 6) and np.allclose(proba.sum(axis=1), 1)


def test_a_stream_begins_with_and_is_refitted_to_lone_rows():
    model = attn_knn(**CHEAP).partial_fit(ROWS[:30], LABELS[:30])
    model.partial_fit(ROWS[30:], LABELS[30:])
    assert sums_to_one(model.refresh().predict_proba(ROWS))
    assert set(model.classes_) == set(LABELS)


def test_sets_under_a_uniform_prior_are_judged_by_the_other_classes():
    model = attn_knn(preset="instant", class_prior="uniform").fit(ROWS, LABELS)
    assert model.predict_set(ROWS, 0.8).shape == (60, 6)
