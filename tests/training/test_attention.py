"""Further training of the head: it can only improve on the shipped weights, and repeats."""

import copy
import math

import pytest
import torch

from nearwise.nn import NeighborSet, shared_head
from nearwise.nn.neighbor_set import N_SUMMARY
from nearwise.training import HeadConfig, HeadRows, held_out_nll, train_head

C = 3


def rows(n=200, k=8, seed=0, informative=True):
    """Neighbors whose reliability tells which of them to trust."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=g)
    trusted = torch.rand(n, k, generator=g) < 0.5
    wrong = torch.randint(0, C, (n, k), generator=g)
    votes = torch.where(trusted, labels[:, None], wrong) if informative else wrong
    distances = torch.rand(n, k, generator=g).sort(dim=1).values
    base = torch.full((n, C), -math.log(C))
    nothing, summary = torch.zeros(n, k), torch.zeros(n, N_SUMMARY)
    # The neighbors to trust are those around which labels disagree, unlike on any real table.
    facts = (torch.ones(n, k), 1 - trusted.float(), nothing, nothing, nothing, nothing)
    seen = NeighborSet(distances, votes, *facts, summary, base)
    return HeadRows([seen], base, labels, torch.ones(n))


def head():
    return copy.deepcopy(shared_head()).requires_grad_(True)


def test_learns_whom_to_trust():
    model, held_out = head(), rows(seed=1)
    before = held_out_nll(model, held_out)
    history = train_head(model, rows(), held_out, HeadConfig(epochs=20), seed=0)
    after = held_out_nll(model, held_out)
    assert after < before - 0.05
    assert history[0] == {"epoch": 0, "train_loss": None, "held_out_nll": before}
    assert after == pytest.approx(min(record["held_out_nll"] for record in history), abs=1e-5)
    assert not model.training


def test_is_never_worse_than_the_shipped_head_on_the_held_out_rows():
    model, held_out = head(), rows(seed=1, informative=False)
    before = held_out_nll(model, held_out)
    config = HeadConfig(epochs=20, patience=2, lr=0.5)
    history = train_head(model, rows(seed=2), held_out, config, seed=0)
    assert held_out_nll(model, held_out) <= before
    assert len(history) < 21


def test_rows_of_weight_zero_teach_nothing():
    train, held_out = rows(), rows(seed=1)
    train.weight[100:] = 0
    other = HeadRows(train.spaces, train.base_log_proba, train.labels.clone(), train.weight)
    other.labels[100:] = (other.labels[100:] + 1) % C
    first, second = head(), head()
    config = HeadConfig(epochs=3)
    train_head(first, train, held_out, config, seed=0)
    train_head(second, other, held_out, config, seed=0)
    for name, value in first.state_dict().items():
        torch.testing.assert_close(value, second.state_dict()[name])


def test_chunks_predict_as_one():
    model, many = shared_head(), rows(2500)
    output = model.predict(many.spaces, many.base_log_proba)
    with torch.no_grad():
        whole = model(many.spaces, many.base_log_proba)
    torch.testing.assert_close(output.log_proba, whole.log_proba)
    torch.testing.assert_close(output.weights[0], whole.weights[0])
    torch.testing.assert_close(output.null_mass, whole.null_mass)


@pytest.mark.parametrize("settings", [{"epochs": 0}, {"lr": -1.0}, {"neighbor_weight": -0.1}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        HeadConfig(**settings)
