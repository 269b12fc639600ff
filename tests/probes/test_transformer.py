"""Probes that are networks: they read tokens, keep the best epoch, and repeat."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from nearwise.probes import MLPProbe, TransformerProbe
from tests.probes.cases import blobs

SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2, "epochs": 8, "batch_size": 32, "lr": 5e-3}
LONG = {**SMALL, "d_model": 32, "epochs": 25, "random_state": 0}


def tokens(n=160, seed=0):
    """The class is which of four tokens is large: the mean over tokens does not tell."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 4, n)
    codes[:4] = np.arange(4)
    X = 0.3 * generator.normal(size=(n, 4, 3))
    X[np.arange(n), codes] += 2
    return X.astype(np.float32), np.array(list("abcd"))[codes]


@pytest.mark.slow
def test_positions_tell_what_the_mean_of_the_tokens_does_not():
    train, held, test = tokens(), tokens(60, 1), tokens(100, 2)
    probe = TransformerProbe(**LONG).fit(*train, validation=held)
    assert probe.score(*test) > 0.9
    without = TransformerProbe(**LONG, positions=False).fit(*train)
    assert without.score(*test) < 0.6
    shuffled = test[0][:, [2, 0, 3, 1]]  # without positions the order says nothing
    assert np.allclose(without.predict_proba(shuffled), without.predict_proba(test[0]), atol=1e-5)


def test_the_study_s_probe_has_its_size():
    X = np.zeros((4, 256, 512), np.float32)
    network = TransformerProbe()._build(X, 10)
    count = sum(p.numel() for p in network.parameters())
    assert count == 1_253_642  # 1.25 M: embedding, positions, two layers, head


def test_attentive_pooling_alone_learns_which_token_to_read():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 200)
    X = 0.3 * generator.normal(size=(200, 6, 3))
    X[np.arange(200), generator.integers(0, 6, 200), 0] += np.where(y, 3, -3)
    probe = TransformerProbe(
        16, 0, 2, pooling="attention", positions=False, epochs=12, lr=1e-2, random_state=0
    ).fit(X[:150], y[:150])
    assert probe.score(X[150:], y[150:]) > 0.8


@pytest.mark.parametrize("probe", [TransformerProbe(**SMALL), MLPProbe(16, epochs=4)])
def test_the_epoch_with_the_lowest_held_out_nll_is_kept_and_repeats(probe):
    train, held = (tokens(), tokens(60, 1)) if probe.reads_tokens else (blobs(), blobs(60, seed=1))
    with pytest.raises(NotFittedError):
        probe.predict(train[0])
    before = torch.get_rng_state()
    fitted = clone(probe).set_params(random_state=3).fit(*train, validation=held)
    assert torch.equal(before, torch.get_rng_state())
    proba = fitted.predict_proba(held[0])
    codes = np.searchsorted(fitted.classes_, held[1])
    nll = -np.log(proba[np.arange(len(codes)), codes]).mean()
    assert fitted.choice_["nll"] == pytest.approx(nll, abs=1e-5)
    assert nll == pytest.approx(
        min(record["evaluation"]["nll"] for record in fitted.history_), abs=1e-5
    )
    assert np.array_equal(clone(fitted).fit(*train, validation=held).predict_proba(held[0]), proba)


def test_the_rate_is_chosen_by_the_held_out_nll():
    train, held = blobs(120, spread=2.5), blobs(60, seed=1, spread=2.5)
    options = {"hidden": 16, "epochs": 6, "random_state": 0}
    nll = {
        lr: MLPProbe(lr=lr, **options).fit(*train, validation=held).choice_["nll"]
        for lr in (1e-3, 3e-3)
    }
    chosen = MLPProbe(**options).fit(*train, validation=held)
    assert chosen.choice_["tried"] == list(nll.items())
    assert chosen.choice_["lr"] == min(nll, key=nll.get)
    assert chosen.choice_["nll"] == min(nll.values())
    with pytest.raises(ValueError, match="lr='fast' is neither"):
        MLPProbe(lr="fast").fit(*train)


def test_half_precision_tokens_are_read_as_they_are():
    X, y = tokens()
    half, whole = X.astype(np.float16), X.astype(np.float16).astype(np.float32)
    proba = TransformerProbe(**SMALL, random_state=0).fit(half, y).predict_proba(half)
    expected = TransformerProbe(**SMALL, random_state=0).fit(whole, y).predict_proba(whole)
    assert np.array_equal(proba, expected)


def test_features_of_any_scale_are_standardised():
    X, y = tokens()
    options = {**SMALL, "random_state": 0}
    one = TransformerProbe(**options).fit(X, y).predict_proba(X)
    other = TransformerProbe(**options).fit(X * 1000 + 50, y).predict_proba(X * 1000 + 50)
    assert np.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 must divide d_model=16"),
        ({"pooling": "max"}, "pooling='max' is neither"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        TransformerProbe(**{**SMALL, **settings}).fit(*tokens(40))


def test_vectors_are_one_token_per_row():
    X, y = blobs(60)
    probe = TransformerProbe(**SMALL, random_state=0)
    proba = probe.fit(X, y).predict_proba(X)
    assert probe.n_features_in_ == X.shape[1]
    assert np.array_equal(clone(probe).fit(X[:, None], y).predict_proba(X[:, None]), proba)


def test_other_tokens_than_those_fitted_on_are_refused():
    X, y = tokens(40)
    probe = TransformerProbe(**{**SMALL, "epochs": 1})
    with pytest.raises(ValueError, match=r"shape \(40, 4, 3, 1\); TransformerProbe reads tokens"):
        probe.fit(X[..., None], y)
    probe.fit(X, y)
    with pytest.raises(
        ValueError, match="Rows of X have 4 tokens of width 2; 4 tokens of width 3 were fitted on"
    ):
        probe.predict(X[:, :, :2])
    with pytest.raises(ValueError, match="has 2 features"):
        probe.predict(X[:, :2])
    with pytest.raises(ValueError, match="1 tokens of width 4; 4 tokens of width 3"):
        probe.predict(X[:, :, 0])


def test_choices_are_made_on_a_row_per_class_where_rows_are_few():
    X, y = blobs(12, n_classes=6)
    y = np.repeat(np.unique(y), 2)  # a tenth of 12 rows would be two, for six classes
    probe = MLPProbe(4, epochs=1, lr=1e-2, random_state=0).fit(X, y)
    assert probe.predict_proba(X).shape == (12, 6)
