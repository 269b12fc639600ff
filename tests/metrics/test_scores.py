"""Scores agree with scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, log_loss

from nearwise.metrics import accuracy, brier, macro_f1, nll
from tests.metrics.cases import CASES, random_case

EACH_CASE = pytest.mark.parametrize(("y", "proba"), CASES.values(), ids=CASES.keys())


@EACH_CASE
def test_accuracy_and_f1_are_those_of_scikit_learn(y, proba):
    predicted = proba.argmax(axis=1)
    assert accuracy(y, proba) == pytest.approx(accuracy_score(y, predicted))
    assert macro_f1(y, proba) == pytest.approx(f1_score(y, predicted, average="macro"))


@EACH_CASE
def test_class_positions_give_the_same_scores_as_their_probabilities(y, proba):
    predicted = proba.argmax(axis=1)
    assert accuracy(y, predicted) == accuracy(y, proba)
    assert macro_f1(y, predicted) == macro_f1(y, proba)


@pytest.mark.parametrize("name", ["random", "random-26-classes", "votes"])
def test_accuracy_and_f1_are_those_of_torchmetrics(name):
    # Here, for it imports transformers, which every process that only collects tests would pay.
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    y, proba = CASES[name]
    scores, labels = torch.tensor(proba.argmax(axis=1)), torch.tensor(y)
    n_classes = proba.shape[1]
    f1 = multiclass_f1_score(scores, labels, n_classes, average="macro")
    hits = multiclass_accuracy(scores, labels, n_classes, average="micro")
    assert macro_f1(y, proba) == pytest.approx(float(f1), abs=1e-6)
    assert accuracy(y, proba) == pytest.approx(float(hits), abs=1e-6)


@EACH_CASE
def test_nll_is_the_mean_of_minus_log_with_a_floor(y, proba):
    slow = [-np.log(max(row[label], 1e-7)) for row, label in zip(proba, y, strict=True)]
    assert nll(y, proba) == pytest.approx(np.mean(slow))


def test_nll_is_that_of_scikit_learn_where_nothing_is_clipped():
    y, proba = random_case(0, sharpness=5.0)
    assert nll(y, proba) == pytest.approx(log_loss(y, proba, labels=range(4)))


def test_nll_of_sure_rows_is_zero_or_the_bound():
    assert str(nll([0, 1], np.eye(2))) == "0.0"
    assert nll([1, 0], np.eye(2)) == pytest.approx(-np.log(1e-7))


@EACH_CASE
def test_brier_sums_over_classes(y, proba):
    onehot = np.eye(proba.shape[1])[y]
    assert brier(y, proba) == pytest.approx(((proba - onehot) ** 2).sum(axis=1).mean(), abs=1e-12)


@pytest.mark.parametrize("name", ["random", "random-two-classes", "votes", "class-missing"])
def test_brier_is_that_of_scikit_learn_unhalved(name):
    y, proba = CASES[name]
    labels = range(proba.shape[1])
    expected = brier_score_loss(y, proba, labels=list(labels), scale_by_half=False)
    assert brier(y, proba) == pytest.approx(expected)


def test_a_tie_between_classes_goes_to_the_lowest_position():
    assert accuracy([0, 1], [[0.5, 0.5], [0.5, 0.5]]) == 0.5
