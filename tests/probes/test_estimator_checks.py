"""Every probe passes scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import nearwise.probes
from nearwise.probes import AttentionProbe, KNNProbe, LinearProbe, MLPProbe, TransformerProbe
from nearwise.probes.base import Probe

TRAINED = {"epochs": 12, "lr": 1e-2}
PROBES = [
    KNNProbe(),
    KNNProbe(3),
    KNNProbe("val", weights="softmax", temperature="val"),
    AttentionProbe(4, keys="features"),
    AttentionProbe(4, keys="both"),
    AttentionProbe(),
    LinearProbe(C=1.0),
    LinearProbe([0.1, 1.0]),
    MLPProbe(16, epochs=20, lr=3e-2),
    TransformerProbe(8, 1, 1, **TRAINED),
    TransformerProbe(8, 0, 2, pooling="attention", positions=False, **TRAINED),
]
_FEW_ROWS = "the check fits 10 to 15 rows: 20 neighbors are not there, which fit refuses"
EXPECTED_FAILURES = {
    repr(KNNProbe()): {
        "check_classifier_data_not_an_array": _FEW_ROWS,
        "check_estimators_nan_inf": _FEW_ROWS,
        "check_fit2d_1feature": _FEW_ROWS,
        "check_n_features_in_after_fitting": _FEW_ROWS,
    }
}


def expected_failures(estimator):
    """Checks that an estimator does not pass, each with the reason."""
    return EXPECTED_FAILURES.get(repr(estimator), {})


@parametrize_with_checks(PROBES, expected_failed_checks=expected_failures)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


def test_every_public_probe_is_checked():
    public = {getattr(nearwise.probes, name) for name in nearwise.probes.__all__}
    probes = {one for one in public if isinstance(one, type) and issubclass(one, Probe)} - {Probe}
    assert {type(probe) for probe in PROBES} == probes


@pytest.mark.parametrize("check", EXPECTED_FAILURES[repr(KNNProbe())])
def test_no_check_is_expected_to_fail_in_vain(check):
    """What is listed fails for the reason that is given."""
    import sklearn.utils.estimator_checks as checks

    with pytest.raises((ValueError, AssertionError), match="n_neighbors=20 exceeds"):
        getattr(checks, check)("KNNProbe", KNNProbe())
