"""Weights and votes are probabilities, whatever the dtype, k or mask."""

import math

import pytest
import torch

from nearwise.functional import aggregate_labels, distance_weights, uniform_weights

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}


def distances(n, k, dtype=torch.float32):
    return torch.rand(n, k, dtype=torch.float64).sort(1).values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 16, 200])
def test_every_row_of_weights_sums_to_one(dtype, k):
    d = distances(5, k, dtype)
    mask = torch.rand(5, k) < 0.5
    mask[:, 0] = True
    for weights in (
        uniform_weights(d),
        uniform_weights(d, mask),
        distance_weights(d, 0.07),
        distance_weights(d, 0.07, mask),
    ):
        assert weights.dtype == dtype and (weights >= 0).all()
        total = weights.double().sum(1)
        torch.testing.assert_close(total, torch.ones(5).double(), rtol=0, atol=TOLERANCE[dtype])


def test_float16_similarities_at_small_temperature_do_not_overflow():
    weights = distance_weights(-torch.ones(2, 10, dtype=torch.float16), temperature=0.01)
    assert torch.isfinite(weights).all()
    torch.testing.assert_close(weights, torch.full((2, 10), 0.1, dtype=torch.float16))


def test_distance_weights_are_the_softmax_of_minus_distance_over_temperature():
    got = distance_weights(torch.tensor([[0.0, 1.0, 3.0]]), temperature=2.0)
    raw = [math.exp(0), math.exp(-0.5), math.exp(-1.5)]
    torch.testing.assert_close(got, torch.tensor([[value / sum(raw) for value in raw]]))


def test_masked_and_infinitely_far_neighbors_weigh_nothing():
    d = torch.tensor([[1.0, 2.0, math.inf]])
    assert distance_weights(d)[0, 2] == 0
    mask = torch.tensor([[False, True, False]])
    assert distance_weights(d, mask=mask).tolist() == [[0.0, 1.0, 0.0]]
    assert uniform_weights(d, mask).tolist() == [[0.0, 1.0, 0.0]]


def test_a_learned_temperature_gets_a_gradient():
    log_temperature = torch.zeros((), requires_grad=True)
    distance_weights(distances(3, 4), log_temperature.exp()).square().sum().backward()
    assert log_temperature.grad is not None and log_temperature.grad != 0


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="not positive"):
        distance_weights(distances(2, 3), temperature)


def test_a_row_that_keeps_no_neighbor_is_refused():
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="Row 1 keeps no neighbor"):
        uniform_weights(torch.zeros(2, 2), mask)
    with pytest.raises(ValueError, match="mask has dtype"):
        uniform_weights(torch.zeros(2, 2), mask[:, :1])
    with pytest.raises(ValueError, match="NaN"):
        distance_weights(torch.tensor([[math.nan, 1.0]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_of_votes_sums_to_one(dtype):
    weights = distance_weights(distances(9, 200, dtype), 0.07)
    labels = torch.randint(0, 5, (9, 200))
    soft = torch.rand(9, 200, 5).softmax(-1)
    sample_weight = torch.rand(9, 200)
    sample_weight[0] = 0
    for carried in (labels, soft):
        for eps in (0.0, 0.1):
            for given in (None, sample_weight):
                proba = aggregate_labels(weights, carried, 5, eps=eps, sample_weight=given)
                ones = torch.ones(9, dtype=proba.dtype)
                torch.testing.assert_close(proba.sum(1), ones, rtol=0, atol=1e-5)
                assert (proba >= 0).all() and proba.dtype in (torch.float32, torch.float64)


def test_votes_by_hand():
    weights = torch.tensor([[0.5, 0.3, 0.2]])
    labels = torch.tensor([[2, 0, 2]])
    torch.testing.assert_close(
        aggregate_labels(weights, labels, 3), torch.tensor([[0.3, 0.0, 0.7]])
    )
    torch.testing.assert_close(
        aggregate_labels(weights, labels, 3, eps=0.3), torch.tensor([[0.31, 0.1, 0.59]])
    )
    one_hot = torch.nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(
        aggregate_labels(weights, one_hot, 3), aggregate_labels(weights, labels, 3)
    )
    heavy = torch.tensor([[1.0, 5.0, 0.0]])
    torch.testing.assert_close(
        aggregate_labels(weights, labels, 3, sample_weight=heavy), torch.tensor([[0.75, 0.0, 0.25]])
    )
    nothing = aggregate_labels(weights, labels, 3, sample_weight=torch.zeros(1, 3))
    torch.testing.assert_close(nothing, torch.full((1, 3), 1 / 3))


def test_votes_pass_gradients_to_weights_and_soft_labels():
    weights = torch.full((2, 4), 0.25, requires_grad=True)
    soft = torch.full((2, 4, 3), 1 / 3, requires_grad=True)
    aggregate_labels(weights, soft, 3)[:, 0].sum().backward()
    assert weights.grad is not None and soft.grad is not None
    assert torch.isfinite(weights.grad).all()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.tensor([[0, 3]]), {}, r"labels lie in \[0, 3\] but n_classes=3"),
        (torch.tensor([[-1, 0]]), {}, r"labels lie in \[-1, 0\]"),
        (torch.tensor([[0]]), {}, "one class position per neighbor"),
        (torch.ones(1, 2, 4), {}, "one probability per class"),
        (torch.tensor([[0, 1]]), {"eps": 1.5}, "outside"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, options, message):
    with pytest.raises(ValueError, match=message):
        aggregate_labels(torch.tensor([[0.5, 0.5]]), labels, 3, **options)
