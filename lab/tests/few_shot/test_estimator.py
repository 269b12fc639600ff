"""Attention learned on some classes names rows of others."""

import numpy as np
import pytest
import torch
from nearwise_lab.few_shot.attention import EpisodeAttention
from nearwise_lab.few_shot.episodes import draw_episodes
from nearwise_lab.few_shot.estimator import FewShotAttention
from sklearn.base import clone
from sklearn.datasets import load_digits

from tests.classifier.cases import same, sums_to_one

X, Y = load_digits(return_X_y=True)
KNOWN = Y < 6


@pytest.fixture(scope="module")
def model():
    settings = {"metric": "identity", "n_episodes": 80, "random_state": 0}
    return FewShotAttention(**settings).fit(X[KNOWN], Y[KNOWN])


def episodes(n=20, **sizes):
    return draw_episodes(Y, n, n_way=4, classes=[6, 7, 8, 9], seed=3, **sizes)


def prototype_answers(episode):
    rows = (X - X[KNOWN].mean(0)) / (X[KNOWN].std(0) + 1)
    support, query = rows[episode.support], rows[episode.query]
    means = np.stack([support[episode.support_labels == c].mean(0) for c in range(4)])
    return ((query[:, None] - means) ** 2).sum(2).argmin(1)


def test_it_names_new_classes_better_than_prototypes_of_standardised_rows(model):
    ours, theirs = [], []
    for e in episodes():
        proba = model.predict_proba(X[e.query], X[e.support], e.support_labels)
        assert sums_to_one(proba)
        ours.append((proba.argmax(1) == e.query_labels).mean())
        theirs.append((prototype_answers(e) == e.query_labels).mean())
    assert np.mean(ours) > np.mean(theirs) + 0.005 > 0.7


def test_labels_of_the_support_are_those_that_come_back(model):
    e = next(episodes())
    names = np.array(["six", "seven", "eight", "nine"])[e.support_labels]
    named = model.predict(X[e.query], X[e.support], names)
    proba = model.predict_proba(X[e.query], X[e.support], names)
    assert set(named) <= set(names) and same(named, np.unique(names)[proba.argmax(1)])


def test_support_sets_may_be_uneven_and_of_any_size(model):
    rows = np.concatenate([np.flatnonzero(c == Y)[:n] for c, n in ((6, 1), (7, 30), (8, 3))])
    proba = model.predict_proba(X[:50], X[rows], Y[rows])
    assert proba.shape == (50, 3) and sums_to_one(proba)


def test_the_order_of_the_support_does_not_matter(model):
    e = next(episodes())
    order = np.random.default_rng(0).permutation(len(e.support))
    first = model.predict_proba(X[e.query], X[e.support], e.support_labels)
    again = model.predict_proba(X[e.query], X[e.support[order]], e.support_labels[order])
    np.testing.assert_allclose(first, again, atol=1e-5)


def test_fits_repeat_and_round_trips_are_exact(model, tmp_path):
    e = next(episodes())
    ask = (X[e.query], X[e.support], e.support_labels)
    few = clone(model).set_params(n_episodes=8)
    twins = [clone(few).fit(X[KNOWN][:400], Y[KNOWN][:400]).predict_proba(*ask) for _ in range(2)]
    assert same(*twins)
    model.save(tmp_path / "m")
    again = FewShotAttention.load(tmp_path / "m")
    assert same(again.predict_proba(*ask), model.predict_proba(*ask))
    assert again.choice_ == model.choice_ and again.get_params()["n_shot"] == 5


@pytest.mark.slow
def test_classes_kept_out_choose_the_metric():
    model = FewShotAttention(n_episodes=16, random_state=0).fit(X[KNOWN], Y[KNOWN])
    assert set(model.choice_["held_out_nll"]) == {"identity", "learned"}
    best = min(model.choice_["held_out_nll"], key=model.choice_["held_out_nll"].get)
    assert model.choice_["metric"] == best


def test_an_untrained_network_answers_as_its_prototypes_and_distances_do():
    torch.manual_seed(0)
    support, labels = torch.randn(12, 3) + 4 * torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    network = EpisodeAttention(3)
    output = network(support + 0.01, support, labels)
    assert (output.log_proba.argmax(1) == labels).float().mean() > 0.9
    torch.testing.assert_close(output.log_proba.exp().sum(1), torch.ones(12))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "cosine"}, "metric='cosine' is not known"),
        ({"n_episodes": 0}, "n_episodes=0"),
        ({"n_shot": 500}, "n_shot \\+ n_query"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        FewShotAttention(**settings).fit(X[KNOWN], Y[KNOWN])


def test_what_cannot_be_asked_is_refused(model):
    with pytest.raises(ValueError, match="holds one class"):
        model.predict(X[:2], X[:3], [1, 1, 1])
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(X[:2, :3], X[:3], [0, 1, 1])
