"""Predictions of true labels behind those of given ones, and what the pool does with them."""

import numpy as np
import pytest
import torch

from nearwise.classifier.fit.base import IMPLIED
from nearwise.classifier.model.gates import clearly_lower, pooled
from nearwise.classifier.noise.noisy_labels import (
    ForwardCorrection,
    given_log_proba,
    true_log_proba,
)
from nearwise.metrics import ece, nll
from tests.classifier.cases import CHEAP, attn_knn, blobs, logistic, reopened, same, wrong_labels

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
