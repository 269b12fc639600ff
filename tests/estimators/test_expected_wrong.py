"""The expected number of wrong labels is near the true one where classes can be told apart."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from nearwise import AttnKNNClassifier, AttnKNNRegressor, review
from nearwise.estimators.noise.expected import ExpectedWrong, wrong_share


def expected(X, y):
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(X, y)
    return review(model).expected_wrong_labels()


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(600, n_features=5, centers=4, cluster_std=1.0, random_state=3)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("next_class", [True, False])
def test_the_interval_holds_the_number_of_labels_made_wrong(blobs, rate, next_class):
    X, y = blobs
    rng = np.random.default_rng(1)
    given, wrong = y.copy(), rng.permutation(len(y))[: round(rate * len(y))]
    given[wrong] = (y[wrong] + (1 if next_class else rng.integers(1, 4, len(wrong)))) % 4
    found = expected(X, given)
    assert found.low <= len(wrong) <= found.high
    assert found.low <= found.number <= found.high
    assert (found.n_rows, found.source) == (600, "predictions")


def test_clean_labels_of_separate_classes_are_expected_to_be_right(blobs):
    found = expected(*blobs)
    assert found.low == 0 and found.number < 3 and found.high < 0.04 * 600


def test_labels_that_overlap_alone_explains_are_not_surely_wrong():
    rng = np.random.default_rng(0)
    q = 1 / (1 + np.exp(-1.5 * rng.normal(size=3000)))  # rarely sure
    labels = (rng.random(3000) < q).astype(int)
    rate, (low, high) = wrong_share(np.column_stack([1 - q, q]), labels)
    disagreeing = float(((q > 0.5) != labels).mean())
    assert low == 0.0 and rate < disagreeing / 2 and rate <= high


def test_the_same_probabilities_give_the_same_interval_whatever_the_order(blobs):
    rng = np.random.default_rng(2)
    proba = rng.dirichlet(np.full(5, 0.2), 400)
    labels = proba.argmax(axis=1)
    labels[:40] = rng.integers(0, 5, 40)
    order = rng.permutation(400)
    one, other = wrong_share(proba, labels), wrong_share(proba[order], labels[order])
    np.testing.assert_allclose(np.r_[one[0], one[1]], np.r_[other[0], other[1]])


def test_a_fit_with_a_noise_model_gives_its_own_share(blobs):
    X, y = (part[:200] for part in blobs)
    model = AttnKNNClassifier(cv=3, estimator=None, label_noise=0.1, random_state=0).fit(X, y)
    found = review(model).expected_wrong_labels()
    assert found.source == "noise model"
    assert found.number == pytest.approx(200 * review(model).noise.rate)


def test_wrong_targets_are_counted_by_the_estimate_of_the_regressor():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    model = AttnKNNRegressor(preset="instant", estimator=None, random_state=0)
    reviewed = review(model.fit(X, X[:, 0]))
    found = reviewed.expected_wrong_labels()
    assert found.number == pytest.approx(200 * reviewed.noise.rate)


def test_the_sentence_gives_whole_rows():
    found = ExpectedWrong(12.4, 3.9, 30.2, 2000, "predictions")
    assert str(found) == "about 12 of 2,000 (4 to 30)"
