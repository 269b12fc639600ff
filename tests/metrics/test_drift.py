"""Evidence of drift: rare where there is none, soon large where there is."""

import numpy as np
import pytest
from scipy.stats import binomtest

from nearwise.metrics import drift_evidence


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(0)
    n_streams = 200
    highest = np.array([drift_evidence(rng.random(400)).max() for _ in range(n_streams)])
    for evidence in (5, 20):
        n_alarms = (highest >= evidence).sum()
        assert binomtest(n_alarms, n_streams, 1 / evidence, alternative="greater").pvalue > 0.01
        assert n_alarms > 0


def test_it_is_no_bet_against_rows_that_are_more_alike_than_known_ones():
    assert drift_evidence(np.full(500, 0.9)).max() <= 1


@pytest.mark.parametrize("start", [0, 2_000])
def test_a_drift_is_found_early_and_late(start):
    rng = np.random.default_rng(1)
    drifted = rng.random(300) ** 4  # a fifth is usual, half is below a sixteenth
    evidence = drift_evidence(np.concatenate([rng.random(start), drifted]))
    assert evidence[start + 60] > 100 > evidence[: start + 1].max()


def test_each_value_depends_on_the_rows_before_it_alone():
    p = np.random.default_rng(2).random(50)
    assert drift_evidence(p)[:20].tolist() == drift_evidence(p[:20]).tolist()
    assert len(drift_evidence([])) == 0


@pytest.mark.parametrize("wrong", [[1.1], [-0.1], [np.nan], [[0.5]]])
def test_other_than_p_values_is_refused(wrong):
    with pytest.raises(ValueError, match="from 0 to 1"):
        drift_evidence(wrong)
