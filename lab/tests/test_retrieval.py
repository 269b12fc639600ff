"""From similarities to the probability that a list holds the answer."""

import numpy as np
import pytest
from nearwise_lab.retrieval import RetrievalConfidence, first_relevant
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from nearwise.metrics import ece, nll
from tests.classifier.cases import same


def lists(n=1500, k=6, seed=0):
    """Similarities of which the gap between the first two tells what the top alone does not."""
    rng = np.random.default_rng(seed)
    similarity = np.sort(rng.normal(size=(n, k)), axis=1)[:, ::-1]
    gap = similarity[:, :1] - similarity[:, 1:2]
    chance = 1 / (1 + np.exp(-(similarity - similarity[:, :1] + 3 * gap - 1)))
    return similarity, rng.random((n, k)) < chance


S, R = lists()
TRAIN, TEST = slice(0, 1000), slice(1000, None)


@pytest.fixture(scope="module")
def model():
    return RetrievalConfidence(epochs=60, random_state=0).fit(S[TRAIN], R[TRAIN])


def binary(chance):
    return np.stack([1 - chance, chance], axis=1)


def test_probabilities_of_ranks_are_probabilities_and_rise_with_k(model):
    ranks = model.predict_ranks(S[TEST])
    assert ranks.shape == (500, 7) and (ranks >= 0).all()
    np.testing.assert_allclose(ranks.sum(1), 1, atol=1e-12)
    by_k = np.stack([model.predict_proba(S[TEST], k=k) for k in range(1, 7)])
    assert (np.diff(by_k, axis=0) >= 0).all()
    np.testing.assert_allclose(by_k[-1], 1 - ranks[:, -1], atol=1e-12)


@pytest.mark.parametrize("k", [1, 6])
def test_it_knows_more_than_the_top_similarity_and_is_calibrated(model, k):
    held = R[:, :k].any(axis=1)
    platt = LogisticRegression().fit(S[TRAIN, :1], held[TRAIN]).predict_proba(S[TEST, :1])
    ours = binary(model.predict_proba(S[TEST], k=k))
    assert nll(held[TEST].astype(int), ours) < nll(held[TEST].astype(int), platt) - 0.03
    assert ece(held[TEST].astype(int), ours) < 0.07


def test_grades_are_taken_as_probabilities():
    relevance = np.array([[0.5, 1.0, 0.3], [0.0, 0.0, 0.0], [0.0, 0.25, 0.5]])
    expected = [[0.5, 0.5, 0, 0], [0, 0, 0, 1], [0, 0.25, 0.375, 0.375]]
    np.testing.assert_allclose(first_relevant(relevance), expected)
    model = RetrievalConfidence(epochs=30, random_state=0).fit(S[TRAIN], R[TRAIN] * 0.5)
    full = RetrievalConfidence(epochs=30, random_state=0).fit(S[TRAIN], R[TRAIN])
    half, whole = (m.predict_proba(S[TEST], k=1).mean() for m in (model, full))
    assert half == pytest.approx(whole / 2, abs=0.04)


def test_features_of_the_items_are_learned_from(model):
    features = np.stack([R + 0.1 * S, S**2], axis=2).astype(float)
    knowing = RetrievalConfidence(epochs=60, random_state=0).fit(
        S[TRAIN], R[TRAIN], features[TRAIN]
    )
    assert knowing.held_out_nll_ < model.held_out_nll_ - 0.2
    assert knowing.predict_proba(S[TEST], item_features=features[TEST]).shape == (500,)
    with pytest.raises(ValueError, match="item_features has none"):
        knowing.predict_proba(S[TEST])
    with pytest.raises(ValueError, match="item_features has shape"):
        model.predict_proba(S[TEST], item_features=features[TEST])


@pytest.mark.parametrize("width", [0, 2])
def test_fits_repeat_and_round_trips_are_exact(width, tmp_path):
    features = np.random.default_rng(0).normal(size=(1500, 6, 2)) if width else None
    part = None if features is None else features[TRAIN]
    model = RetrievalConfidence(epochs=5, random_state=3).fit(S[TRAIN], R[TRAIN], part)
    twin = clone(model).fit(S[TRAIN], R[TRAIN], part)
    model.save(tmp_path / "m")
    again = RetrievalConfidence.load(tmp_path / "m")
    asked = {"item_features": part}
    expected = model.predict_ranks(S[TRAIN], **asked)
    assert same(twin.predict_ranks(S[TRAIN], **asked), expected)
    assert same(again.predict_ranks(S[TRAIN], **asked), expected)


@pytest.mark.parametrize(
    ("similarity", "relevance", "message"),
    [
        (S[:, ::-1], R, "similarity rises along 1500 of 1500 rows"),
        (S, R[:, :2], r"relevance has shape \(1500, 2\)"),
        (S, 2.0 * R, "must lie in \\[0, 1\\]"),
        (S[:20], R[:20], "20 queries are too few"),
        (np.where(S > 2, np.nan, S), R, "NaN"),
    ],
    ids=["rising", "shape", "range", "few", "missing"],
)
def test_lists_that_cannot_be_learned_from_are_refused(similarity, relevance, message):
    with pytest.raises(ValueError, match=message):
        RetrievalConfidence().fit(similarity, relevance)


def test_lists_of_another_length_and_ks_outside_are_refused(model):
    with pytest.raises(ValueError, match=r"3 items and those in fit had 6"):
        model.predict_proba(S[:5, :3])
    with pytest.raises(ValueError, match="k=7 must lie between 1 and the 6"):
        model.predict_proba(S[:5], k=7)
