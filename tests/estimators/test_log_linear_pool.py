"""Share and temperature of a pool, by rows that nothing was fitted to; true labels in a pool."""

import numpy as np
import pytest
import torch

from nearwise.estimators.fit.base import IMPLIED
from nearwise.estimators.model.gates import clearly_lower, pooled
from nearwise.estimators.model.log_linear_pool import (
    accept,
    clearly_better,
    fit_temperature,
    mean_nll,
    shrink,
)
from nearwise.estimators.noise.noisy_labels import (
    ForwardCorrection,
    given_log_proba,
    true_log_proba,
)
from nearwise.metrics import ece, nll
from tests.estimators.cases import CHEAP, attn_knn, blobs, logistic, reopened, same, wrong_labels

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


def right_at(proba, n_rows):
    """Log-probabilities (n_rows, 2) that give a label of 0 this probability, and such labels."""
    rows = torch.tensor([[proba, 1 - proba]]).log().expand(n_rows, -1)
    return rows, torch.zeros(n_rows, dtype=torch.int64)


@pytest.mark.parametrize("n_rows", [10, 30, 100, 300])
def test_rows_that_are_all_right_are_made_surer_only_for_a_quarter_of_a_wrong_row(n_rows):
    log_proba, labels = right_at(0.9, n_rows)
    ones = torch.ones(n_rows)
    temperature, nll = fit_temperature(log_proba, labels, ones)
    accepted = accept(log_proba, None, labels, ones).temperature
    wrong = torch.ones(1, dtype=torch.int64)
    for found in (temperature, accepted):
        after, before = (
            mean_nll(torch.log_softmax(log_proba / t, dim=1), labels, ones) for t in (found, 1.0)
        )
        lost = mean_nll(torch.log_softmax(log_proba[:1] / found, dim=1), wrong, ones[:1])
        lost -= mean_nll(log_proba[:1], wrong, ones[:1])
        assert after <= before
        assert n_rows * (before - after) >= 0.25 * lost  # half a row, half of which is wrong
    assert mean_nll(torch.log_softmax(log_proba / temperature, dim=1), labels, ones) == nll


def test_of_many_rows_the_temperature_is_that_of_their_labels():
    g = torch.Generator().manual_seed(0)
    truth = torch.log_softmax(2 * torch.randn(20_000, 4, generator=g), dim=1)
    labels = torch.multinomial(truth.exp(), 1, generator=g)[:, 0]
    temperature, _ = fit_temperature(flattened(truth, 2.0), labels, torch.ones(20_000))
    assert temperature == pytest.approx(2.0, rel=0.03)


def better(log_proba, other, labels, weight=None):
    weight = torch.ones(len(labels)) if weight is None else weight
    return clearly_better(log_proba, other, labels, weight)


def test_to_be_surer_of_few_rows_that_are_all_right_is_not_better():
    (plain, labels), (surer, _) = right_at(0.975, 69), right_at(0.995, 69)
    gain = mean_nll(plain, labels, torch.ones(69)) - mean_nll(surer, labels, torch.ones(69))
    assert gain > 1 / 69
    assert not better(surer, plain, labels)
    assert better(surer.repeat(30, 1), plain.repeat(30, 1), labels.repeat(30))


def test_a_gain_of_one_row_is_chance_where_others_lose_a_little():
    plain, labels = right_at(0.6, 40)
    ones, many, one = torch.ones(40), plain.clone(), plain.clone()
    plain = plain.clone()
    plain[0], one[1:4] = torch.tensor([[0.05, 0.95], [0.55, 0.45]]).log()
    many[:], many[0] = torch.tensor([[0.64, 0.36], [0.05, 0.95]]).log()
    gains = [mean_nll(plain, labels, ones) - mean_nll(found, labels, ones) for found in (one, many)]
    assert min(gains) > 1 / 40
    assert [better(found, plain, labels) for found in (one, many)] == [False, True]


def test_what_is_right_more_often_is_better_unless_those_rows_weigh_nothing():
    truth, labels = drawn(sharpness=3.0)
    unsure = flattened(truth, 0.2)
    assert better(truth, unsure, labels)
    assert not better(unsure, truth, labels)
    assert not better(unsure, unsure, labels)
    right = truth.argmax(1) == labels
    assert not better(truth, unsure, labels, (~right).float() + 1e-6)


TRANSITION = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.8, 0.15], [0.3, 0.1, 0.6]]).double()
HALF = torch.tensor([[0.7, 0.3], [0.3, 0.7]]).double()


def test_true_labels_behind_given_ones_are_those_that_lead_to_them():
    inside = torch.softmax(torch.randn(200, 3, dtype=torch.float64), dim=1) * 0.7 + 0.1
    given = given_log_proba(inside.log(), TRANSITION)
    assert (true_log_proba(given, TRANSITION).exp() - inside).abs().max() < 0.03


def test_predictions_surer_than_the_noise_allows_give_a_sure_answer_and_no_certainty():
    given = torch.tensor([[0.99, 0.01], [0.7, 0.3], [0.5, 0.5]]).double().log()
    true = true_log_proba(given, HALF).exp()
    assert true.sum(1).allclose(torch.ones(3).double())
    assert 0.99 < true[0, 0] < 1
    assert true[1, 0] > 0.9
    assert true[2, 0] == pytest.approx(0.5)


def test_without_noise_predictions_stay_as_they_are():
    given = torch.log_softmax(torch.randn(50, 3, dtype=torch.float64), dim=1)
    found = true_log_proba(given, torch.eye(3).double()).exp()
    torch.testing.assert_close(found, given.exp(), atol=3e-3, rtol=0)


def test_powers_cannot_undo_the_noise_of_two_classes_and_predictions_of_true_labels_can():
    rng = np.random.default_rng(0)
    proba = rng.beta(0.5, 0.5, 20_000)
    proba = np.column_stack([1 - proba, proba])
    true = (rng.random(20_000) < proba[:, 1]).astype(int)
    given = np.where(rng.random(20_000) < 0.3, 1 - true, true)
    parts, model = {"model": np.log(proba @ HALF.numpy())}, ForwardCorrection(matrix=HALF)
    plain = pooled(parts, given, None, model)
    wider = pooled(model.with_true(parts), given, None, model)
    assert clearly_lower(wider.losses, plain.losses)
    assert nll(true, np.exp(wider.log_proba)) < nll(true, np.exp(plain.log_proba)) - 0.02
    assert ece(true, np.exp(plain.log_proba)) > 0.05
    assert ece(true, np.exp(wider.log_proba)) < 0.02


def test_a_folder_whose_base_has_predictions_of_true_labels_opens(tmp_path):
    X, y = blobs(240, 3, spread=0.9)
    given = wrong_labels(y, 0.3, seed=1)
    model = attn_knn(label_noise=0.3, **{**CHEAP, "estimator": logistic()}).fit(X, given)
    models = model._predictor.row_models
    left_out = {"LogisticRegression": np.log([[0.6, 0.3, 0.1]])}
    plain = models.base.pooled(left_out)
    models.base.gates = {name + IMPLIED: gate for name, gate in models.base.gates.items()}
    models.base.implied = model._predictor.label_model.implied
    surer = models.base.pooled(left_out)
    assert surer.max() > plain.max() + 0.1
    again = reopened(model, tmp_path / "model")
    assert same(again._predictor.row_models.base.pooled(left_out), surer)
    assert same(again.predict_proba(X[:40]), model.predict_proba(X[:40]))
