"""Scores and sets against the papers' formulas label by label, and against MAPIE."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from nearwise.estimators.uncertainty.conformal import (
    Penalty,
    check_enough,
    nonconformity,
    p_values,
    rows_needed,
    sets_from_p_values,
)
from tests.reference import conformal as reference

METHODS = ["lac", "aps", "raps"]
RAPS = Penalty(0.03, 2)


def probabilities(rng, n, n_classes=5, lattice=False):
    """Rows that sum to 1; on a lattice many probabilities are equal, some 0."""
    raw = (
        rng.integers(0, 4, (n, n_classes)) + 0.0 if lattice else rng.gamma(0.5, size=(n, n_classes))
    )
    raw[raw.sum(axis=1) == 0] = 1.0
    return raw / raw.sum(axis=1, keepdims=True)


def drawn_from(rng, proba):
    """Draw a class of each row."""
    return (rng.random((len(proba), 1)) > proba.cumsum(axis=1)[:, :-1]).sum(axis=1)


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drawn", [False, True])
def test_scores_are_the_papers(rng, method, lattice, drawn):
    proba = probabilities(rng, 40, lattice=lattice)
    draws = rng.random(40) if drawn else None
    found = nonconformity(proba, method, RAPS, draws)
    for row in range(40):
        draw = 1.0 if draws is None else draws[row]
        for label in range(5):
            expected = reference.score(proba[row], label, method, *RAPS, draw)
            assert found[row, label] == pytest.approx(expected, abs=1e-12)


def p_of_rows(scores, own, labels=None):
    """p-values from the nonconformity of rows' own labels, whose labels are right."""
    n_classes = scores.shape[1]
    truth = np.eye(n_classes)[np.zeros(len(own), dtype=int) if labels is None else labels]
    judged = np.repeat(own[:, None], n_classes, axis=1)
    return p_values(scores, judged, truth, by_class=labels is not None)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("n_rows", [19, 20, 99, 100, 137])
def test_the_sets_are_those_of_split_conformal_prediction(rng, confidence, n_rows):
    judged = rng.integers(0, 12, n_rows) / 12  # with ties
    asked = rng.integers(0, 13, (30, 4)) / 12
    p = p_of_rows(asked, judged)
    expected = [reference.split_set(judged, row, confidence) for row in asked]
    np.testing.assert_array_equal(sets_from_p_values(p, confidence), expected)


def test_class_conditional_sets_compare_a_label_with_rows_of_its_class(rng):
    labels, judged = rng.integers(0, 3, 90), rng.random(90)
    asked = rng.random((20, 3))
    p = p_of_rows(asked, judged, labels)
    for label in range(3):
        alone = judged[labels == label]
        expected = [reference.split_set(alone, [one], 0.8)[0] for one in asked[:, label]]
        assert sets_from_p_values(p, 0.8)[:, label].tolist() == expected


def test_the_true_label_is_covered_as_often_as_asked():
    rng = np.random.default_rng(3)
    proba = probabilities(rng, 4000)
    labels = np.array([rng.choice(5, p=row) for row in proba])
    judged, rest = slice(0, 2000), slice(2000, None)
    for method in METHODS:
        draws = rng.random(4000)
        scores = nonconformity(proba, method, RAPS, draws)
        own = scores[np.arange(4000), labels]
        p = p_of_rows(scores[rest], own[judged])
        covered = sets_from_p_values(p, 0.9)[np.arange(2000), labels[rest]].mean()
        assert abs(covered - 0.9) < 0.025  # about 2.7 standard errors of both parts together


@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("by_class", [False, True])
def test_the_true_label_is_covered_where_the_judged_labels_are_often_wrong(method, by_class):
    rng = np.random.default_rng(5)
    transition = np.array([[0.6, 0.3, 0.1], [0.05, 0.75, 0.2], [0.1, 0.1, 0.8]])
    covered, believed = [], []
    for _ in range(20):
        proba = rng.dirichlet(np.full(3, 0.4), size=3000)
        true = drawn_from(rng, proba)
        given = drawn_from(rng, transition[true[:1500]])
        scores = nonconformity(proba, method, draws=rng.random(3000))
        judged, asked = scores[:1500], scores[1500:]
        for found, truth in ((covered, np.linalg.inv(transition)), (believed, np.eye(3))):
            p = p_values(asked, judged, truth[given], by_class=by_class)
            found.append(sets_from_p_values(p, 0.9)[np.arange(1500), true[1500:]].mean())
    assert 0.895 < np.mean(covered) < 0.925  # counts are made to fall, which covers a little more
    assert np.mean(believed) > 0.95  # what wrong labels ask for: sets too large to be of use


class GivenProbabilities(ClassifierMixin, BaseEstimator):
    """For MAPIE: a fitted classifier whose rows are their own probabilities."""

    def __init__(self, n_classes=5):
        self.n_classes = n_classes

    def fit(self, X, y):
        self.classes_ = np.arange(self.n_classes)
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)


@pytest.fixture(name="against_mapie")
def _against_mapie(rng):
    classification = pytest.importorskip("mapie.classification")
    proba, asked = probabilities(rng, 300), probabilities(rng, 60)
    labels = np.array([rng.choice(5, p=row) for row in proba])

    def sets(method, confidence, **options):
        model = classification.SplitConformalClassifier(
            GivenProbabilities().fit(None, None),
            confidence_level=confidence,
            conformity_score=method,
            prefit=True,
            random_state=7,
        )
        model.conformalize(proba, labels)
        found = model.predict_set(asked, conformity_score_params=options)[1][:, :, 0]
        return found, model

    return proba, labels, asked, sets


def ours(proba, labels, asked, method, confidence, penalty=RAPS, draws=(None, None)):
    own = nonconformity(proba, method, penalty, draws[0])[np.arange(len(labels)), labels]
    scores = nonconformity(asked, method, penalty, draws[1])
    return sets_from_p_values(p_of_rows(scores, own), confidence)


@pytest.mark.parametrize("confidence", [0.7, 0.9, 0.95])
@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_are_those_of_mapie_with_the_same_draws(against_mapie, method, confidence):
    *given, sets = against_mapie
    options, draws = {}, (None, None)
    if method == "aps":
        options = {"include_last_label": "randomized"}
        draws = [np.random.RandomState(7).uniform(size=n) for n in (300, 60)]
    found = ours(*given, method, confidence, draws=draws)
    np.testing.assert_array_equal(found, sets(method, confidence, **options)[0])


def test_raps_scores_are_those_of_mapie_with_the_same_draws(against_mapie):
    sets = pytest.importorskip("mapie.conformity_scores.sets")
    proba, labels, *_ = against_mapie
    aps = sets.APSConformityScore()
    aps.set_external_attributes(classes=np.arange(5), random_state=7)
    plain = aps.get_conformity_scores(labels, proba, labels)
    # MAPIE chooses the penalty on rows of its own; here ours is put in
    penalize = sets.RAPSConformityScore._regularize_conformity_score
    expected = penalize(np.array([RAPS.free]), RAPS.each, plain, aps.cutoff)
    draws = np.random.RandomState(7).uniform(size=300)
    found = nonconformity(proba, "raps", RAPS, draws)[np.arange(300), labels]
    np.testing.assert_allclose(found, expected[:, 0, 0], atol=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_the_rows_asked_for_are_just_enough_to_rule_a_label_out(confidence):
    needed = rows_needed(confidence)
    for n_rows, some_out in ((needed, True), (needed - 1, False)):
        p = p_of_rows(np.full((1, 1), 9.0), np.zeros(n_rows))
        assert (not sets_from_p_values(p, confidence).all()) == some_out


def test_too_few_rows_are_refused_with_the_number_needed():
    labels = np.array([0] * 8)
    with pytest.raises(ValueError, match=r"at least 9 rows .* there are 8.* at most 0.889"):
        check_enough(np.eye(2)[labels], np.array(["a", "b"]), 0.9, each=False)
    labels = np.array([0] * 30 + [1] * 3)
    check_enough(np.eye(2)[labels], np.array(["a", "b"]), 0.9, each=False)
    with pytest.raises(ValueError, match=r"at least 9 rows of every class .*b has 3"):
        check_enough(np.eye(2)[labels], np.array(["a", "b"]), 0.9, each=True)
