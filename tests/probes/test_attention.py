"""AttentionProbe: better than plain votes where neighbors can be told apart, and never a peeker."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from nearwise.probes import AttentionProbe, KNNProbe
from tests.probes.cases import blobs

QUICK = {"epochs": 3, "key_dim": 8, "random_state": 0}


def mixed(n, seed):
    """Two informative columns among wide noise: plain neighbors are poor, a map finds them."""
    X, y = blobs(n, width=2, seed=seed, spread=0.4)
    noise = np.random.default_rng(seed + 50).normal(size=(n, 20)) * 1.5
    return np.concatenate([X, noise], axis=1).astype(np.float32), y


def nll(probe, X, y):
    proba = probe.predict_proba(X)
    codes = np.searchsorted(probe.classes_, y)
    return -np.log(proba[np.arange(len(y)), codes].clip(1e-7)).mean()


def test_a_learned_map_finds_neighbors_that_noise_hides():
    train, held, test = (mixed(n, seed) for n, seed in ((500, 0), (150, 1), (300, 2)))
    plain = KNNProbe(20, metric="l2").fit(*train)
    learned = AttentionProbe(random_state=0, epochs=15).fit(*train, validation=held)
    assert learned.score(*test) > plain.score(*test) + 0.05
    assert nll(learned, *test) < nll(plain, *test)


def test_weights_learned_on_the_same_neighbors_lower_the_nll():
    train, held, test = (blobs(n, seed=s, spread=2.0) for n, s in ((400, 0), (100, 1), (200, 2)))
    attention = KNNProbe(20, weights="attention", random_state=0).fit(*train, validation=held)
    assert nll(attention, *test) < nll(KNNProbe(20).fit(*train), *test)
    told = attention.attention_.choice_["heads"][0]
    assert told["nll"] <= told["start_nll"]


@pytest.mark.parametrize("keys", ["features", "learned", "both"])
def test_attention_and_null_sum_to_one_and_make_the_prediction_repeat(keys):
    X, y = blobs(120)
    probe = AttentionProbe(6, keys=keys, **QUICK).fit(X, y)
    told = probe.attend(X[:10])
    assert list(told) == (["features", "learned"] if keys == "both" else [keys])
    total = sum(part.weights.sum(1) for part in told.values()) + next(iter(told.values())).null
    assert np.allclose(total, 1, atol=1e-5)
    assert np.allclose(probe.predict_proba(X).sum(1), 1)
    again = clone(probe).fit(X, y)
    assert np.array_equal(again.predict_proba(X), probe.predict_proba(X))


def test_rows_held_out_join_the_memory_and_validation_rows_do_not():
    X, y = blobs(100)
    assert len(AttentionProbe(keys="features", random_state=0).fit(X, y).spaces_[0].keys) == 100
    given = AttentionProbe(keys="features", random_state=0).fit(
        X[:80], y[:80], validation=(X[80:], y[80:])
    )
    assert len(given.spaces_[0].keys) == 80
    joined = AttentionProbe(keys="features", random_state=0).fit(
        X[:80], y[:80], validation=(X[80:], y[80:]), refit=True
    )
    assert len(joined.spaces_[0].keys) == 100 and joined.choice_ == given.choice_


def test_leave_one_out_does_not_see_its_own_label():
    X, y = blobs(80)
    probe = AttentionProbe(6, keys="features", random_state=0).fit(X, y)
    before = probe.predict_proba()[7]
    space = probe.spaces_[0]
    space.codes[7] = (space.codes[7] + 1) % 3  # the head stays: only what is remembered changes
    counted = space.own[:, :-1]
    space.reliability = (space.codes[counted] == space.codes[:, None]).float().mean(1)
    assert np.allclose(probe.predict_proba()[7], before, atol=1e-6)


def test_auto_takes_the_keys_of_the_lower_held_out_nll():
    train, held = mixed(300, 0), mixed(100, 1)
    probe = AttentionProbe(random_state=0, epochs=15).fit(*train, validation=held)
    nll = probe.choice_["nll"]
    assert probe.choice_["keys"] == min(nll, key=nll.get) == "both"
    alone = AttentionProbe(keys="both", random_state=0, epochs=15).fit(*train, validation=held)
    assert np.array_equal(alone.predict_proba(held[0]), probe.predict_proba(held[0]))


def test_few_rows_and_two_classes_are_enough():
    X, y = blobs(24, n_classes=2)
    probe = AttentionProbe(**QUICK).fit(X, y)
    assert probe.predict_proba(X).shape == (24, 2)


def test_what_does_not_fit_is_refused():
    X, y = blobs(40)
    with pytest.raises(NotFittedError):
        AttentionProbe().predict(X)
    with pytest.raises(ValueError, match="keys='all' is none of auto, features, learned, both"):
        AttentionProbe(keys="all").fit(X, y)
    with pytest.raises(ValueError, match="must be at least 1"):
        AttentionProbe(0).fit(X, y)


def test_torch_is_left_as_it_was():
    X, y = blobs(60)
    before = torch.get_rng_state()
    AttentionProbe(**QUICK).fit(X, y)
    assert torch.equal(before, torch.get_rng_state())
