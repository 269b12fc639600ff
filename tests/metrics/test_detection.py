"""Out-of-distribution detection, against scikit-learn on smooth scores and on ties."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from nearwise.metrics import aupr, auroc, evaluate_detection, fpr_at_tpr

CASES = {
    "smooth": lambda rng: (rng.normal(size=80), rng.normal(1, 1, 50)),
    "ties": lambda rng: (rng.integers(0, 5, 90), rng.integers(1, 7, 40)),
    "all tied": lambda rng: (np.zeros(10), np.zeros(7)),
    "one of each": lambda rng: (np.zeros(1), np.ones(1)),
    "infinite": lambda rng: (rng.normal(size=20), np.r_[rng.normal(size=5), np.inf, np.inf]),
}


@pytest.fixture(params=CASES, name="scores")
def _scores(request, rng):
    known, novel = CASES[request.param](rng)
    y = np.r_[np.zeros(len(known)), np.ones(len(novel))]
    finite = np.nan_to_num(np.r_[known, novel].astype(float), posinf=1e6)
    return known, novel, y, finite


def test_auroc_and_aupr_are_those_of_scikit_learn(scores):
    known, novel, y, everyone = scores
    assert auroc(known, novel) == pytest.approx(roc_auc_score(y, everyone))
    assert aupr(known, novel) == pytest.approx(average_precision_score(y, everyone))
    assert aupr(known, novel, positive="known") == pytest.approx(
        average_precision_score(1 - y, -everyone)
    )


@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
def test_false_alarms_are_the_first_point_of_the_roc_curve_with_enough_hits(scores, tpr):
    known, novel, y, everyone = scores
    fpr, hits, _ = roc_curve(y, everyone, drop_intermediate=False)
    expected = fpr[np.flatnonzero(hits >= tpr - 1e-12)[0]]
    assert fpr_at_tpr(known, novel, tpr) == pytest.approx(expected)


def test_order_does_not_matter_and_all_come_in_one_call(rng):
    known, novel = CASES["ties"](rng)
    found = evaluate_detection(known, novel)
    assert found == evaluate_detection(rng.permutation(known), rng.permutation(novel))
    assert list(found) == ["auroc", "aupr_novel", "aupr_known", "fpr95"]


def test_bad_scores_are_refused():
    with pytest.raises(ValueError, match="novel has NaN, first in row 1"):
        auroc([0.0], [0.0, np.nan])
    with pytest.raises(ValueError, match="at least one score"):
        aupr([], [1.0])
    with pytest.raises(ValueError, match="tpr=95"):
        fpr_at_tpr([0.0], [1.0], 95)
    with pytest.raises(ValueError, match="positive="):
        aupr([0.0], [1.0], positive="both")
