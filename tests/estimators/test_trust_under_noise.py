"""Sets, risks and wrong labels: what is promised is promised of the true labels."""

import numpy as np
import pytest

from nearwise.estimators.uncertainty.calibration_rows import calibration_rows
from nearwise.estimators.uncertainty.selective import bernstein_bound
from tests.estimators.cases import CHEAP, attn_knn, blobs, logistic, reopened, same, wrong_labels

RATE = 0.3
SETTINGS = {**CHEAP, "estimator": logistic()}


@pytest.fixture(scope="module")
def noisy():
    X, y = blobs(1200, 3, spread=1.5)
    given = wrong_labels(y, RATE, seed=1)
    model = attn_knn(label_noise=RATE, **SETTINGS).fit(X[:800], given[:800])
    return model, X, y, given


def test_judged_rows_count_true_labels(noisy):
    model, _, y, given = noisy
    rows = calibration_rows(model._predictor, 3, 1)
    predicted = rows.parts.proba.argmax(axis=1)
    places = model._predictor.views.bank.ids.numpy()
    truly_wrong = np.mean(predicted != np.searchsorted(model.classes_, y[places]))
    seen_wrong = np.mean(predicted != np.searchsorted(model.classes_, given[places]))
    assert rows.in_shares
    np.testing.assert_allclose(rows.truth.sum(axis=1), 1)
    assert abs(rows.wrong.mean() - truly_wrong) < 0.04  # .016 / .55 is a standard error
    assert seen_wrong - truly_wrong > 0.15


def test_sets_hold_the_true_label_and_are_smaller_than_those_of_given_labels(noisy):
    model, X, y, given = noisy
    test = slice(800, None)
    right = np.searchsorted(model.classes_, y[test])
    sets = model.predict_set(X[test], 0.9)
    believing = attn_knn(**SETTINGS).fit(X[:800], given[:800])
    larger = believing.predict_set(X[test], 0.9)
    assert 0.86 < sets[np.arange(400), right].mean() < 0.96
    assert larger.sum(axis=1).mean() - sets.sum(axis=1).mean() > 0.5


def test_the_risk_is_that_of_true_labels_and_its_bound_says_so(noisy):
    model, X, y, _ = noisy
    chosen = model.predict_selective(X[800:], coverage=0.9)
    wrong = np.mean(chosen.labels[chosen.accepted] != y[800:][chosen.accepted])
    assert abs(chosen.expected_risk - wrong) < 0.06
    assert wrong <= chosen.risk_bound < 1
    assert "Bernstein" in chosen.guarantee
    assert "transition" in chosen.guarantee
    with pytest.raises(ValueError, match=r"max_risk=0.001 cannot .* because labels may be wrong"):
        model.predict_selective(X[800:], max_risk=0.001)


def test_labels_taken_as_given_are_counted_as_they_are():
    X, y = blobs(150, 3)
    model = attn_knn(label_noise="auto", **SETTINGS).fit(X, y)
    rows = calibration_rows(model._predictor, 3, 1)
    assert not rows.in_shares
    assert same(rows.wrong, (~rows.correct).astype(float))
    assert "Clopper-Pearson" in model.predict_selective(X, coverage=0.8).guarantee


def test_the_bound_is_exceeded_no_more_often_than_asked(rng):
    losses = np.array([-0.27, 1.36])  # of a rate of .3 among three classes, about
    counts, often = np.array([0.5, 1.4]), np.array([0.8, 0.2])
    spread = np.ptp(losses) + np.ptp(counts)
    exceeded = 0
    for _ in range(400):
        drawn = rng.choice(2, 200, p=often)
        bound = bernstein_bound(losses[drawn], counts[drawn], spread, 0.1)
        exceeded += bound < losses @ often / (counts @ often)
    assert exceeded <= 0.1 * 400
    assert bernstein_bound(losses[:1], counts[:1], 1.0, 0.1) == 1.0


def test_where_all_rows_count_alike_the_bound_is_the_one_of_the_paper(rng):
    losses = rng.choice([-0.2, 1.2], 300, p=[0.7, 0.3])
    term = np.log(2 / 0.05)
    slack = np.sqrt(2 * losses.var(ddof=1) * term / 300) + 7 * 1.4 * term / (3 * 299)
    assert bernstein_bound(losses, np.ones(300), 1.4, 0.05) == pytest.approx(losses.mean() + slack)


def test_a_new_class_counts_as_labelled():
    grown = attn_knn(label_noise=RATE, **SETTINGS)
    X_few, y_few = blobs(240, 3, spread=0.9)
    grown.fit(X_few, wrong_labels(y_few, RATE, seed=1))
    grown.add(X_few[:30] + 9.0, [3] * 30)
    truth = calibration_rows(grown._predictor, 4, 1).truth
    late = calibration_rows(grown._predictor, 4, 1).labels == 3
    assert late.sum() == 30
    np.testing.assert_array_equal(truth[late], np.eye(4)[[3] * 30])


def tail_of(y, seed=0):
    """Rows of which the second class is kept in three of ten and the third in one."""
    return np.random.default_rng(seed).random(len(y)) < np.array([1.0, 0.3, 0.1])[y]


@pytest.fixture(scope="module")
def noisy_tail():
    X, y = blobs(9000, 3, spread=1.5)
    X, X_new, y, y_new = X[::2], X[1::2], y[::2], y[1::2]
    kept = tail_of(y)
    X, y = X[kept], y[kept]
    matrix = np.full((3, 3), 0.1) + 0.7 * np.eye(3)
    given = wrong_labels(y, 0.2, seed=1)
    model = attn_knn(label_noise=matrix, class_prior="uniform", **SETTINGS).fit(X, given)
    return model, X, y, given, matrix, X_new, y_new


@pytest.mark.slow
def test_wanted_shares_are_set_against_those_of_the_true_classes(noisy_tail):
    model, X, y, given, matrix, X_new, y_new = noisy_tail
    plain = attn_knn(label_noise=matrix, **SETTINGS).fit(X, given)
    true, seen = np.bincount(y) / len(y), np.bincount(given) / len(y)
    taken = np.exp(-np.array(model._predictor.classes.shift)) / 3
    assert np.abs(taken - true).max() < 0.03 < np.abs(seen - true).max()
    expected = plain.predict_proba(X_new) / taken
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X_new), expected, atol=1e-4)
    rare = y_new == 2
    found, before = (one.predict(X_new[rare]) == 2 for one in (model, plain))
    assert found.mean() > before.mean() + 0.1


@pytest.mark.slow
def test_sets_and_risks_hold_for_true_labels_in_wanted_shares(noisy_tail, tmp_path):
    model, *_, X_new, y_new = noisy_tail
    rows = calibration_rows(model._predictor, 3, 1)
    shares = rows.truth.sum(axis=0) / rows.truth.sum()
    np.testing.assert_allclose(shares, 1 / 3)
    covered = model.predict_set(X_new, 0.8)[np.arange(len(y_new)), y_new]
    assert 0.74 < covered.mean() < 0.92
    chosen = model.predict_selective(X_new, coverage=0.7)
    wrong = np.mean(chosen.labels[chosen.accepted] != y_new[chosen.accepted])
    assert abs(chosen.accepted.mean() - 0.7) < 0.08
    assert abs(chosen.expected_risk - wrong) < 0.08 and wrong < chosen.risk_bound
    assert (model.novelty_p_value(X_new) <= 0.1).mean() < 0.14
    again = reopened(model, tmp_path / "model")
    assert same(again.predict_set(X_new[:50]), model.predict_set(X_new[:50]))


def test_labels_found_clean_are_corrected_as_without_noise():
    X, y = blobs(700, 3, spread=0.9)
    X, y = X[tail_of(y)], y[tail_of(y)]
    settings = {**CHEAP, "class_prior": "uniform"}
    one = attn_knn(label_noise="auto", **settings).fit(X, y)
    assert "taken as they are" in one.report_.choice["label_noise"]["decision"]
    other = attn_knn(**settings).fit(X, y)
    assert same(one.predict_proba(X), other.predict_proba(X))
