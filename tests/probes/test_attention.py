"""AttentionProbe: better than plain votes where neighbors can be told apart, and never a peeker."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import cosine_distances

from nearwise.nn import shared_head
from nearwise.probes import AttentionProbe, KNNProbe
from nearwise.probes.base import Rows
from nearwise.probes.key_space import Whitening
from tests.probes.cases import blobs


def mixed(n, seed):
    """Two informative columns among wide noise: plain neighbors are poor, a map finds them."""
    X, y = blobs(n, width=2, seed=seed, spread=0.4)
    noise = np.random.default_rng(seed + 50).normal(size=(n, 20)) * 1.5
    return np.concatenate([X, noise], axis=1).astype(np.float32), y


def nll(probe, X, y):
    proba = probe.predict_proba(X)
    codes = np.searchsorted(probe.classes_, y)
    return -np.log(proba[np.arange(len(y)), codes].clip(1e-7)).mean()


def test_whitened_features_find_neighbors_that_noise_hides():
    train, held, test = (mixed(n, seed) for n, seed in ((500, 0), (150, 1), (300, 2)))
    plain = KNNProbe(20, metric="euclidean").fit(*train)
    attention = AttentionProbe(random_state=0).fit(*train, validation=held)
    assert attention.choice_["keys"] == "both"
    assert attention.score(*test) > plain.score(*test) + 0.05
    assert nll(attention, *test) < nll(plain, *test)


@pytest.mark.parametrize("n", [40, 400])
def test_the_same_neighbors_are_weighed_to_a_lower_nll(n):
    gains = []
    for seed in range(4):
        train, test = (blobs(m, seed=s, spread=2.0) for m, s in ((n, seed), (300, seed + 20)))
        attention = AttentionProbe(20, keys="features").fit(*train)
        gains.append(nll(KNNProbe(20).fit(*train), *test) - nll(attention, *test))
    assert np.mean(gains) > 0.03


@pytest.mark.parametrize("keys", ["features", "whitened", "both"])
def test_attention_and_null_sum_to_one_and_make_the_prediction_repeat(keys):
    X, y = blobs(120)
    probe = AttentionProbe(6, keys=keys).fit(X, y)
    found = probe.attend(X[:10])
    assert list(found) == (["features", "whitened"] if keys == "both" else [keys])
    total = sum(part.weights.sum(1) for part in found.values()) + next(iter(found.values())).null
    assert np.allclose(total, 1, atol=1e-5)
    assert np.allclose(probe.predict_proba(X).sum(1), 1)
    again = clone(probe).fit(X, y)
    assert np.array_equal(again.predict_proba(X), probe.predict_proba(X))


def test_nothing_is_trained_and_the_shared_head_stays_as_it_is():
    before = {name: one.clone() for name, one in shared_head().state_dict().items()}
    state = torch.get_rng_state()
    probe = AttentionProbe(keys="features").fit(*blobs(60))
    AttentionProbe(random_state=0).fit(*blobs(60))
    assert probe.n_parameters_ == 0
    assert all(torch.equal(before[name], one) for name, one in shared_head().state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_the_memory_holds_the_training_rows_and_with_refit_the_validation_rows():
    X, y = blobs(100)

    def remembered(**options):
        probe = AttentionProbe(random_state=0).fit(
            X[:80], y[:80], validation=(X[80:], y[80:]), **options
        )
        return probe, len(probe.predict_proba())

    given, n_given = remembered()
    joined, n_joined = remembered(refit=True)
    assert (n_given, n_joined) == (80, 100)
    assert joined.choice_ == given.choice_
    assert len(AttentionProbe(random_state=0).fit(X, y).predict_proba()) == 100


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_leave_one_out_does_not_see_its_own_label(metric):
    X, y = blobs(80)
    before = AttentionProbe(6, keys="features", metric=metric).fit(X, y).predict_proba()[7]
    y[7] = next(label for label in np.unique(y) if label != y[7])
    after = AttentionProbe(6, keys="features", metric=metric).fit(X, y).predict_proba()[7]
    assert np.allclose(after, before, atol=1e-6)


def test_auto_takes_the_keys_of_the_lower_nll():
    train, held = mixed(300, 0), mixed(100, 1)
    probe = AttentionProbe(random_state=0).fit(*train, validation=held)
    losses = probe.choice_["nll"]
    assert probe.choice_["keys"] == min(losses, key=losses.get) == "both"
    for keys, loss in losses.items():
        alone = AttentionProbe(keys=keys).fit(*train)
        assert nll(alone, *held) == pytest.approx(loss, abs=1e-5)
    assert np.array_equal(alone.predict_proba(held[0]), probe.predict_proba(held[0]))
    assert AttentionProbe(random_state=0).fit(*train).choice_["keys"] == "both"


@pytest.mark.parametrize("shape", [(200, 6), (30, 50)])
def test_whitening_is_that_of_the_covariance_within_classes_that_scikit_learn_shrinks(shape):
    X, y = blobs(shape[0], width=shape[1], spread=2.0)
    X *= np.linspace(0.5, 3, shape[1], dtype=np.float32)
    codes = np.unique(y, return_inverse=True)[1]
    means = np.stack([X[codes == code].mean(0) for code in range(codes.max() + 1)])
    covariance, _ = ledoit_wolf((X - means[codes]).astype(np.float64), assume_centered=True)
    values, vectors = np.linalg.eigh(covariance)
    expected = (X - X.mean(0)) @ (vectors / np.sqrt(values)) @ vectors.T
    keys = Whitening(Rows(X, codes))(X).numpy()
    assert np.allclose(cosine_distances(keys), cosine_distances(expected), atol=1e-4)


def test_rows_that_do_not_differ_within_classes_are_only_centered():
    X = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2, 2]]
    keys = Whitening(Rows(X, np.array([0, 0, 1, 1, 2, 2])))(X)
    assert np.allclose(keys, X - X.mean(0), atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 24])
def test_few_rows_and_two_classes_are_enough(n):
    X, y = blobs(n, n_classes=2)
    probe = AttentionProbe(random_state=0).fit(X, y)
    assert np.allclose(probe.predict_proba(X).sum(1), 1)
    assert probe.predict_proba().shape == (n, 2)


def test_what_does_not_fit_is_refused():
    X, y = blobs(40)
    with pytest.raises(NotFittedError):
        AttentionProbe().predict(X)
    with pytest.raises(ValueError, match="keys='all' is not one of auto, features, whitened, both"):
        AttentionProbe(keys="all").fit(X, y)
    for n_neighbors in (0, 65):
        with pytest.raises(ValueError, match="must lie between 1 and 64"):
            AttentionProbe(n_neighbors).fit(X, y)
