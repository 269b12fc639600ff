"""Share and temperature of a pool, chosen by predictions of rows that nothing was fitted to."""

import torch

from nearwise.classifier.model.log_linear_pool import accept, mean_nll, shrink

N = 400


def drawn(sharpness=2.0, seed=0):
    """Labels, and the log-probabilities that they were drawn from."""
    g = torch.Generator().manual_seed(seed)
    log_proba = torch.log_softmax(sharpness * torch.randn(N, 4, generator=g), dim=1)
    return log_proba, torch.multinomial(log_proba.exp(), 1, generator=g)[:, 0]


def flattened(log_proba, power):
    return torch.log_softmax(power * log_proba, dim=1)


def accepted(head, base, labels):
    found = accept(head, base, labels, torch.ones(N))
    pooled = torch.log_softmax(shrink(head, base, found.share) / found.temperature, dim=1)
    assert abs(mean_nll(pooled, labels, torch.ones(N)) - found.nll) < 1e-6
    return found


def test_a_base_that_is_right_and_unsure_is_taken_at_its_temperature():
    truth, labels = drawn(sharpness=6.0)
    noise = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
    head = torch.log_softmax(truth / 3 + 0.7 * noise, dim=1)
    base = flattened(truth, 0.15)
    ones = torch.ones(N)
    assert mean_nll(head, labels, ones) < mean_nll(base, labels, ones)  # so no share by itself
    found = accepted(head, base, labels)
    assert found.share < 0.5
    assert found.temperature < 0.4
    assert found.nll < mean_nll(truth, labels, ones) + 0.03


def test_what_is_calibrated_already_is_left_alone():
    truth, labels = drawn()
    found = accepted(truth, flattened(truth, 0.999), labels)
    assert (found.share, found.temperature) == (1.0, 1.0)
