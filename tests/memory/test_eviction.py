"""Who leaves a full memory: chance and age, by ids and seed alone."""

import numpy as np
import pytest
import torch

from nearwise.memory import EVICTION_NAMES, choose_evicted
from nearwise.memory.eviction import arrival_draws


def kept(policy, ids, labels, capacity, **options):
    """Ids that stay."""
    gone = choose_evicted(policy, ids, labels, capacity, **options)
    mask = torch.ones(len(ids), dtype=torch.bool)
    mask[gone] = False
    return ids[mask]


def streamed(policy, labels, capacity, cut, seed=0):
    """Ids that stay when rows come in batches of `cut`."""
    labels = torch.as_tensor(labels)
    ids = torch.empty(0, dtype=torch.int64)
    for start in range(0, len(labels), cut):
        arrived = torch.arange(start, min(start + cut, len(labels)))
        ids = torch.cat([ids, arrived])
        ids = kept(policy, ids, labels[ids], capacity, seed=seed)
    return ids.tolist()


def test_a_draw_belongs_to_its_row_and_seed():
    ids = torch.arange(4000)
    draws = arrival_draws(ids, 3)
    assert np.array_equal(draws[[7, 1, 900]], arrival_draws(torch.tensor([7, 1, 900]), 3))
    assert not np.array_equal(draws, arrival_draws(ids, 4))
    assert draws.min() > 0 and draws.max() < 1
    assert np.histogram(draws, 10, (0, 1))[0].min() > 340  # 400 expected, deviation 19
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("policy", EVICTION_NAMES)
def test_how_a_stream_is_cut_decides_nothing(policy):
    labels = np.random.default_rng(0).choice(3, 300, p=[0.7, 0.2, 0.1])
    whole = streamed(policy, labels, 40, 300)
    assert len(whole) == 40
    assert all(streamed(policy, labels, 40, cut) == whole for cut in (1, 7, 50))
    assert streamed(policy, labels, 40, 7, seed=1) != whole


def test_a_reservoir_keeps_every_row_with_the_same_probability():
    labels = np.zeros(50, dtype=int)
    counts = np.zeros(50)
    for seed in range(400):
        counts[streamed("reservoir", labels, 10, 50, seed)] += 1
    assert abs(counts[:25].mean() - 80) < 5 and abs(counts[25:].mean() - 80) < 5
    assert counts.min() > 45 and counts.max() < 115  # 80 expected, deviation 8


def test_age_halves_the_odds_every_half_life():
    labels, shares = torch.zeros(400, dtype=torch.int64), np.zeros(400)
    for seed in range(200):
        shares[kept("age", torch.arange(400), labels, 20, seed=seed, half_life=50.0)] += 1
    # far from the newest rows the shares are proportional to the weights
    middle, older = shares[200:250].sum(), shares[150:200].sum()
    assert 1.4 < middle / older < 2.8
    assert shares[350:].sum() > shares[:300].sum()


@pytest.mark.parametrize("policy", EVICTION_NAMES)
def test_no_class_loses_its_last_row(policy):
    labels = torch.tensor([0, 1, 2, 3] + [4] * 60)
    for seed in range(10):
        stay = kept(policy, torch.arange(64), labels, 6, seed=seed)
        assert len(stay) == 6 and set(labels[stay].tolist()) == {0, 1, 2, 3, 4}


def test_nothing_goes_while_there_is_room():
    assert len(choose_evicted("age", torch.arange(3), torch.tensor([0, 1, 1]), 3, seed=0)) == 0


def test_what_cannot_be_chosen_is_refused():
    ids, labels = torch.arange(4), torch.tensor([0, 1, 2, 3])
    with pytest.raises(ValueError, match="capacity=3 is too small for 4 classes"):
        choose_evicted("reservoir", ids, labels, 3, seed=0)
    with pytest.raises(ValueError, match="eviction='oldest' is not known"):
        choose_evicted("oldest", ids, labels, 3, seed=0)
