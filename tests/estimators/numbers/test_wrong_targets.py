"""Targets that are wrong: found, counted, and kept from doing harm."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from nearwise import AttnKNNClassifier, AttnKNNRegressor, review
from tests.estimators.numbers.cases import QUICK, fitted, table

N, RATE = 400, 0.25


def planted():
    """Rows, targets a quarter of which are other rows', and which are."""
    X, y = table(N, seed=2)
    rng = np.random.default_rng(0)
    at = np.flatnonzero(rng.random(N) < RATE)
    given = y.copy()
    given[at] = y[rng.permutation(at)]
    return X, given, np.abs(given - y) > 0.5


@pytest.fixture(scope="module")
def as_given():
    X, given, _ = planted()
    return AttnKNNRegressor(**QUICK).fit(X, given)


@pytest.fixture(scope="module")
def model():
    X, given, _ = planted()
    return AttnKNNRegressor(**QUICK, label_noise="auto").fit(X, given)


def scores(model):
    X, y = table(600, seed=1)
    low, high = model.predict_interval(X).T
    inside = ((low <= y) & (y <= high)).mean()
    return model.crps(X, y).mean(), inside, (high - low).mean()


def test_their_share_is_found_and_predictions_are_of_right_targets(model, as_given):
    found = model.report_.choice["label_noise"]
    low, high = found["interval"]
    assert low <= found["rate"] <= high and low < RATE < high + 0.05
    crps, inside, width = scores(model)
    crps_before, inside_before, width_before = scores(as_given)
    assert crps < 0.85 * crps_before and width < 0.75 * width_before
    assert abs(inside - 0.9) < abs(inside_before - 0.9) + 0.02 and inside > 0.8


def test_where_all_are_right_next_to_none_is_suspected_and_nothing_is_lost():
    plain = fitted()
    X, y = table()
    model = AttnKNNRegressor(**QUICK, label_noise="auto").fit(X[:120], y[:120])
    assert model.report_.choice["label_noise"]["rate"] <= 0.08
    assert scores(model)[0] < 1.08 * scores(plain)[0]


def test_a_share_that_is_known_is_taken():
    X, given, wrong = planted()
    model = AttnKNNRegressor(**QUICK, label_noise=0.25).fit(X, given)
    assert model.report_.choice["label_noise"] == {"rate": 0.25, "interval": [0.25, 0.25]}
    suspicion = review(model).issues().sort_values("id")["suspicion"]
    assert roc_auc_score(wrong, suspicion) > 0.9
    assert (
        AttnKNNRegressor(**QUICK, label_noise=0).fit(X, given).fitted_.predictor.spread.factor > 0
    )


@pytest.mark.parametrize("share", ["some", -0.1, 1.0, 1.5, True, [0.1], float("nan")])
def test_what_is_no_share_is_refused(share):
    X, y = table()
    with pytest.raises(ValueError, match='Give None, "auto" or the share of wrong targets'):
        AttnKNNRegressor(**QUICK, label_noise=share).fit(X, y)


def test_review_ranks_them_with_and_without_an_estimate_in_the_fit(model, as_given):
    _, given, wrong = planted()
    for one in (model, as_given):
        issues = review(one).issues(n_neighbors=3)
        names = ["id", "given", "suggested", "low", "high", "suspicion", "neighbors"]
        assert list(issues) == names and len(issues) == N
        assert issues["suspicion"].is_monotonic_decreasing
        by_id = issues.sort_values("id")
        assert np.array_equal(by_id["given"], given)
        assert roc_auc_score(wrong, by_id["suspicion"]) > 0.85
        assert all(len(ids) == 3 for ids in issues["neighbors"])
        noise = review(one).noise
        assert noise.interval[0] <= noise.rate <= noise.interval[1]
    assert review(as_given).noise.rate < review(model).noise.rate


def test_findings_name_targets_copies_outliers_and_groups():
    X, given, wrong = planted()
    X = X.copy()
    X[7] = X[3]  # a copy with another target
    X[11] = 40.0
    found = review(AttnKNNRegressor(**QUICK).fit(X, given)).findings()
    labels = found[found["kind"] == "label"]
    assert wrong[labels["id"].to_numpy(int)].mean() > 0.8
    assert {3, 7} <= set(found[found["kind"] == "copy"]["id"])
    assert 11 in set(found[found["kind"] == "outlier"]["id"])
    noisy = np.where(X[:, 2] > 0.5, given + 3 * np.random.default_rng(1).normal(size=N), given)
    groups = review(AttnKNNRegressor(**QUICK).fit(X, noisy)).findings()
    assert any("off on average" in what for what in groups[groups["kind"] == "group"]["what"])


def test_what_is_of_classes_alone_is_refused_and_learned_rows_are_recognized(as_given):
    X, _, _ = planted()
    reviewed = review(as_given)
    found = reviewed.learned(np.concatenate([X[:5], X[:2] + 0.01]))
    assert found.new.tolist() == [False] * 5 + [True] * 2
    for call in (reviewed.evidence, reviewed.trust, lambda: reviewed.predict_learned(found)):
        with pytest.raises(ValueError, match="is of classifiers, and this is a regressor"):
            call()
    with pytest.raises(ValueError, match="is not for targets"):
        reviewed.issues(judge="cleanlab")
    rows = reviewed.rows()
    assert rows.shape == (N, 6) and rows["target"].dtype == float


def test_rows_that_come_later_are_judged_and_corrected_ones_are_trusted(model, tmp_path):
    model.save(tmp_path / "model")
    copy = AttnKNNRegressor.load(tmp_path / "model")
    X, y = table(600, seed=1)
    assert np.array_equal(copy.predict_quantiles(X), model.predict_quantiles(X))
    right, wrong = copy.add(X[:40], y[:40]), copy.add(X[:40] + 1e-3, y[40:80])
    trust = dict(
        zip(copy.memory_.ids.tolist(), copy.memory_.columns["trust"].tolist(), strict=True)
    )
    assert np.mean([trust[i] for i in right]) > 0.15 + np.mean([trust[i] for i in wrong])
    worst = int(review(copy).issues()["id"][0])
    copy.relabel([worst], [0.5])
    at = int(copy.memory_.positions([worst])[0])
    assert copy.memory_.columns["trust"][at] == 1
    copy.remove(right[:3])
    before = copy.report_.choice["label_noise"]["rate"]
    copy.refresh()
    assert abs(copy.report_.choice["label_noise"]["rate"] - before) < 0.1
    assert scores(copy)[0] < 1.15 * scores(model)[0]


def test_without_a_base_forgetting_leaves_nothing_behind():
    X, given, _ = planted()
    options = QUICK | {"estimator": None, "label_noise": "auto"}
    model = AttnKNNRegressor(**options).fit(X, given)
    model.remove(range(5))
    other = AttnKNNRegressor(**options).fit(X[5:], given[5:])
    assert np.allclose(model.predict(X[:9]), other.predict(X[:9]))


def test_a_classifier_keeps_its_review():
    X, y = table()
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y > 0)
    assert "proba_given" in review(model).issues()
    with pytest.raises(AttributeError, match="Wrong labels were not estimated"):
        review(model).noise  # noqa: B018
