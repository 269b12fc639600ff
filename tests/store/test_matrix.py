"""Whatever is fitted opens again: bases, tables, noise, priors, weights, images, views, presets."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nearwise import review
from nearwise.estimators.fit import base
from nearwise.estimators.model import gates
from tests.estimators.cases import CHEAP, QUICK, attn_knn, blobs, reopened, same
from tests.estimators.image_cases import BRIEF, patches
from tests.store.folders import small_table

SMALL = {
    "extra-trees": {"n_estimators": 5},
    "random-forest": {"n_estimators": 5},
    "boosting": {"max_iter": 5, "early_stopping": False},
}


@pytest.fixture
def small_bases(monkeypatch):
    """Give every candidate of the base a part, and only a few trees."""
    original = base.auto_candidates

    def smaller(*args, **options):
        candidates = original(*args, **options)
        for candidate in candidates:
            candidate.model.set_params(**SMALL.get(candidate.name, {}))
            candidate.stops_on_held_out = False
        return candidates

    def everyone(*args, **options):
        pool = pooled(*args, **options)
        return pool._replace(powers=dict.fromkeys(pool.parts, 1.0))

    def fewer_trees(*args, **options):
        return settings_of_forest(*args, **options) | {"n_estimators": 20}

    pooled, settings_of_forest = gates.pooled, base.forest_settings
    monkeypatch.setattr("nearwise.estimators.fit.pipeline.auto_candidates", smaller)
    monkeypatch.setattr("nearwise.estimators.fit.pipeline.forest_settings", fewer_trees)
    monkeypatch.setattr("nearwise.estimators.noise.true_labels.auto_candidates", smaller)
    monkeypatch.setattr(base, "lean_pool", everyone)


def round_trip(model, X, folder):
    """Save, open, and compare everything that is predicted."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no talk of trust where it is not needed
        again = reopened(model, folder)
    assert same(again.predict_proba(X), model.predict_proba(X))
    assert same(again.predict_set(X), model.predict_set(X))
    return again


def some(cases, default):
    """Leave the other cases, which go the same ways, to './run slow'."""
    return [pytest.param(*c, marks=() if c in default else pytest.mark.slow) for c in cases]


NUMBERS, GAPS, CATEGORIES, BOTH = ["age"], ["age", "income"], ["age", "town"], slice(None)


@pytest.mark.parametrize(
    "columns", some([(NUMBERS,), (GAPS,), (CATEGORIES,), (BOTH,)], [(GAPS,), (BOTH,)]), ids=str
)
def test_every_candidate_of_the_base_opens_again(columns, small_bases, tmp_path):
    frame, y = small_table(60)
    frame = frame.loc[:, columns]
    model = attn_knn(cv=2, embedder="identity", **QUICK).fit(frame, y)
    names = {candidate.name for candidate in model._predictor.row_models.base.candidates}
    others = {"kernel-logistic", "random-forest", "boosting", "mlp"}
    assert names == {"logistic", "extra-trees"} | others
    round_trip(model, frame, tmp_path / "m")


WAYS = {
    "label noise, given": ({"label_noise": 0.2}, {}),
    "label noise, estimated": ({"label_noise": "auto"}, {}),
    "class prior": ({"class_prior": "uniform"}, {}),
    "class shares": ({"class_prior": np.array([0.3, 0.7])}, {}),
    "per class": ({"calibration": "per-class"}, {}),
    "sample weights": ({}, {"sample_weight": np.linspace(0.5, 2, 60)}),
    "capacity": ({"capacity": 50}, {}),
    "rows held out": ({"cv": 0.4, "embedder": "identity"}, {}),
}


ALONE = {"label noise, given", "class prior", "capacity", "rows held out"}


@pytest.mark.parametrize(
    ("name", "base"),
    some(
        [(n, b) for n in WAYS for b in ("auto", None)],
        [(n, None if n in ALONE else "auto") for n in WAYS],
    ),
)
def test_every_way_of_fitting_opens_again(name, base, small_bases, tmp_path):
    settings, options = WAYS[name]
    frame, y = small_table(60)
    chosen = {"estimator": base, "embedder": "identity"}
    model = attn_knn(**(QUICK | {"cv": 2} | chosen | settings))
    model.fit(frame, y, **options)
    again = round_trip(model, frame, tmp_path / "m")
    assert same(again.predict_proba(None), model.predict_proba(None))
    if "label_noise" in settings:
        assert review(again).noise.to_json() == review(model).noise.to_json()


OWN = {
    "forest": RandomForestClassifier(4, random_state=0),
    "extra-trees": ExtraTreesClassifier(4, random_state=0),
    "boosting": HistGradientBoostingClassifier(max_iter=3),
    "logistic": LogisticRegression(),
    "naive Bayes": GaussianNB(),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "network": MLPClassifier((4,), max_iter=5, random_state=0),
    "calibrated": CalibratedClassifierCV(GaussianNB(), cv=2),
}


@pytest.mark.parametrize("name", OWN)
def test_a_base_of_ones_own_opens_again(name, tmp_path):
    frame, y = small_table(60)
    model = attn_knn(**{**CHEAP, "estimator": OWN[name]}).fit(frame, y)
    again = round_trip(model, frame, tmp_path / "m")
    assert type(again.estimator) is type(OWN[name])


def test_several_views_open_again(tmp_path):
    X, y = blobs(90)
    model = attn_knn(**{**CHEAP, "cv": "auto", "embedder": "identity"})
    model.fit(X, y, views=[X + 0.1])
    again = round_trip(model, X, tmp_path / "m")
    assert same(again.predict_proba(X, [X]), model.predict_proba(X, [X]))


def test_images_open_again(tmp_path):
    X, y = patches(90)
    model = attn_knn(**{**BRIEF, "tta": ("flip",)}).fit(X, y)
    round_trip(model, X[:5], tmp_path / "m")
