"""Scores agree with scikit-learn and with their definitions."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from nearwise.metrics import accuracy, brier, macro_f1, nll
from tests.metrics.cases import EACH_CASE


@EACH_CASE
def test_accuracy_and_f1_are_those_of_scikit_learn(y, proba):
    predicted = proba.argmax(axis=1)
    assert accuracy(y, proba) == pytest.approx(accuracy_score(y, predicted))
    assert macro_f1(y, proba) == pytest.approx(f1_score(y, predicted, average="macro"))
    assert accuracy(y, predicted) == accuracy(y, proba)
    assert macro_f1(y, predicted) == macro_f1(y, proba)


@EACH_CASE
def test_nll_is_the_mean_of_minus_log_with_a_floor(y, proba):
    slow = [-np.log(max(row[label], 1e-7)) for row, label in zip(proba, y, strict=True)]
    assert nll(y, proba) == pytest.approx(np.mean(slow))


def test_nll_of_sure_rows_is_zero_or_the_bound():
    assert str(nll([0, 1], np.eye(2))) == "0.0"
    assert nll([1, 0], np.eye(2)) == pytest.approx(-np.log(1e-7))


@EACH_CASE
def test_brier_sums_over_classes(y, proba):
    onehot = np.eye(proba.shape[1])[y]
    assert brier(y, proba) == pytest.approx(((proba - onehot) ** 2).sum(axis=1).mean(), abs=1e-12)
