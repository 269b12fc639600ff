"""What a person should look at is found, and what trust is measured on is what it says."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import nearwise
from nearwise import AttnKNNClassifier, review
from nearwise.estimators.classifier import _MOVED
from nearwise.estimators.memory_map import memory_map
from nearwise.estimators.noise.review import held_out_losses
from nearwise.estimators.uncertainty.calibration_rows import calibration_rows
from nearwise.estimators.uncertainty.column_shares import column_shares
from nearwise.metrics import accuracy, nll
from nearwise.metrics.calibration import wilson_interval


def fitted(X, y):
    return AttnKNNClassifier(preset="instant", estimator=None, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(200, n_features=4, centers=3, cluster_std=0.7, random_state=1)


@pytest.fixture(scope="module")
def model(blobs):
    return fitted(*blobs)


def ids_of(found, kind):
    return found.loc[found["kind"] == kind, "id"].tolist()


def test_a_clean_memory_has_next_to_nothing_to_look_at(model):
    assert len(review(model).findings()) <= 2


def test_a_planted_copy_a_wrong_label_and_a_far_row_are_found(blobs):
    X, y = (one.copy() for one in blobs)
    X[1], y[1] = X[0], (y[0] + 1) % 3  # a copy with another label
    y[10] = (y[10] + 1) % 3
    X[20] += 100.0
    found = review(fitted(X, y)).findings()
    assert set(ids_of(found, "copy")[:2]) == {0, 1}
    assert found[found["kind"] == "copy"]["what"].iloc[0].endswith("with another label")
    assert 10 in ids_of(found, "label")
    row = found[(found["kind"] == "label") & (found["id"] == 10)].iloc[0]
    assert (row["given"], row["suggested"]) == (y[10], blobs[1][10])
    assert ids_of(found, "outlier")[:1] == [20]


def test_rows_that_only_their_keys_do_not_tell_apart_are_no_copies():
    grid = np.stack(np.meshgrid(*[np.arange(7.0)] * 3), -1).reshape(-1, 3)
    model = AttnKNNClassifier(preset="instant", random_state=0)
    found = review(model.fit(grid, (grid[:, 0] + grid[:, 1] > 6).astype(int))).findings()
    assert ids_of(found, "copy") == []


def test_a_group_that_is_predicted_badly_is_named():
    rng = np.random.default_rng(0)
    group = np.where(np.arange(400) % 4 == 0, "odd", "plain")
    y = rng.integers(0, 2, 400)
    signal = np.where(group == "plain", y * 6.0, rng.normal(size=400) * 3)
    frame = pd.DataFrame({"group": group, "signal": signal + rng.normal(size=400)})
    found = review(fitted(frame, y)).findings()
    groups = found[found["kind"] == "group"]
    assert groups["what"].str.startswith("group = odd").any()
    assert not groups["what"].str.startswith("group = plain").any()
    odd = groups[groups["what"].str.startswith("group = odd")].iloc[0]
    said = re.search(r"([\d.]+)% of 100 rows right \(95 % interval ([\d.]+)% to", odd["what"])
    right, low = map(float, said.groups())
    assert low < right < 100 and len(odd["ids"]) == 100
    issues = review(fitted(frame, y)).issues().set_index("id")
    wrong = issues["given"] != issues["suggested"]
    n_wrong = round(100 - right)
    assert wrong[list(odd["ids"][:n_wrong])].all() and not wrong[list(odd["ids"][n_wrong:])].any()


def test_trust_is_measured_on_the_calibration_rows(model):
    trust = review(model).trust()
    rows = calibration_rows(model._predictor, 3, 1)
    assert trust.n_rows == len(rows.labels) == trust.reliability.count.sum()
    assert trust.accuracy == accuracy(rows.labels, rows.parts.proba.argmax(axis=1))
    assert trust.nll == nll(rows.labels, rows.parts.proba)
    for shares in trust.set_sizes.values():
        assert shares.sum() == pytest.approx(1.0)
    mean_size = [float(s @ np.arange(len(s))) for s in trust.set_sizes.values()]
    assert mean_size == sorted(mean_size)  # surer sets are larger
    assert "<svg" in trust._repr_html_() and len(trust.to_frame()) == len(trust.reliability.count)


def test_trust_has_the_confusions_and_a_line_per_class():
    X, y = make_blobs(200, 4, centers=3, cluster_std=4.0, random_state=0)
    model = fitted(X, y)
    trust = review(model).trust()
    rows = calibration_rows(model._predictor, 3, 1)
    best = rows.parts.proba.argmax(axis=1)
    np.testing.assert_array_equal(trust.confusion, confusion_matrix(rows.labels, best))
    table = trust.by_class()
    precision, recall, _, count = precision_recall_fscore_support(rows.labels, best)
    np.testing.assert_allclose(table["precision"], precision)
    np.testing.assert_allclose(table["recall"], recall)
    assert table["rows"].tolist() == count.tolist()
    sure = rows.parts.proba.max(axis=1)
    for at, confidence in enumerate(table["confidence"]):
        assert confidence == pytest.approx(sure[best == at].mean())
    low, high = trust.accuracy_interval
    assert low < trust.accuracy < high and len(repr(trust)) < 120
    pairs = trust.confused()
    assert (pairs["rows"] > 0).all() and pairs["rows"].is_monotonic_decreasing
    assert pairs["rows"].sum() == (rows.labels != best).sum()
    for one in pairs.itertuples():
        of_label = (rows.labels == one.given).sum()
        assert one.share == pytest.approx(one.rows / of_label)


def test_the_interval_of_the_accuracy_counts_groups_not_their_rows():
    X, y = make_blobs(60, 4, centers=3, cluster_std=4.0, random_state=0)
    X, y, groups = np.repeat(X, 4, axis=0), np.repeat(y, 4), np.repeat(np.arange(60), 4)
    X += np.random.default_rng(0).normal(scale=0.01, size=X.shape)
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    trust = review(model.fit(X, y, groups=groups)).trust()
    assert (trust.n_rows, trust.n_units) == (240, 60)
    low, high = trust.accuracy_interval
    ends = wilson_interval(np.array([trust.accuracy]), np.array([60.0]), 0.95)
    assert (low, high) == pytest.approx((ends[0][0], ends[1][0]))


def test_a_class_that_is_never_predicted_has_no_precision():
    X, y = np.random.default_rng(0).normal(size=(120, 3)), np.zeros(120, dtype=int)
    y[::40] = 1  # three rows, at random
    table = review(fitted(X, y)).trust().by_class()
    assert np.isnan(table["precision"][1]) and np.isnan(table["confidence"][1])
    assert table["recall"][1] == 0


@pytest.mark.parametrize("name", _MOVED)
def test_former_names_of_a_classifier_say_where_to_find_them(model, blobs, name):
    assert not hasattr(model, name) and name not in dir(model)
    with pytest.raises(AttributeError, match=re.escape(f"{name!r}: use {_MOVED[name]}.")):
        getattr(model, name)
    noisy = AttnKNNClassifier(cv=3, estimator=None, label_noise=0.1, random_state=0)
    known = {"nearwise": nearwise, "X": blobs[0]}
    known["model"] = noisy.fit(*blobs) if ".noise." in _MOVED[name] else model
    assert eval(_MOVED[name], known) is not None or name == "row_names_"


def test_losses_of_held_out_rows_are_those_of_leave_one_out_predictions(model, blobs):
    ids = [3, 50, 120]
    proba = model.predict_proba(None)
    wanted = -np.log(proba[ids, blobs[1][ids]])
    np.testing.assert_allclose(held_out_losses(model._fitted, ids), wanted, rtol=1e-5)


def test_a_map_by_pca_is_that_of_the_keys_and_has_a_place_for_new_rows(model):
    laid = memory_map(model._fitted)
    keys = model.memory_.keys["features"].numpy()
    wanted = PCA(2, svd_solver="covariance_eigh").fit_transform(keys)
    np.testing.assert_allclose(laid.points, wanted, atol=1e-5)
    np.testing.assert_allclose(laid.project(keys[:3]), laid.points[:3], atol=1e-5)
    with pytest.raises(ValueError, match="not known"):
        memory_map(model._fitted, "umap")


def test_a_map_by_tsne_keeps_neighbors_together(model):
    pytest.importorskip("openTSNE")
    laid = memory_map(model._fitted, "tsne")
    _, near = model.kneighbors(None, 1)
    apart = np.linalg.norm(laid.points - laid.points[near[:, 0]], axis=1)
    spread = np.linalg.norm(laid.points - laid.points.mean(axis=0), axis=1)
    assert np.median(apart) < 0.2 * np.median(spread)
    keys = model.memory_.keys["features"].numpy()[:5]
    assert np.linalg.norm(laid.project(keys) - laid.points[:5], axis=1).max() < np.median(spread)


def test_the_column_that_differs_has_all_of_the_distance(model, blobs):
    row = blobs[0][:1].copy()
    row[0, 2] += 1.0
    shares = column_shares(model._fitted, row, [0, 5])
    np.testing.assert_allclose(shares[0], [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    same = column_shares(model._fitted, blobs[0][:1], [0])
    np.testing.assert_array_equal(same, 0.0)


def test_columns_of_a_table_take_their_dates_and_categories_along():
    rng = np.random.default_rng(1)
    n = 120
    frame = pd.DataFrame(
        {
            "when": pd.date_range("2024-01-01", periods=n, freq="D"),
            "town": rng.choice(["Rome", "Oslo"], n),
            "size": rng.normal(size=n),
        }
    )
    model = fitted(frame, (frame["size"] > 0).astype(int))
    for column, other in (("when", frame["when"][77]), ("town", "none of them"), ("size", 2.5)):
        row = frame[:1].copy()
        if column == "town":
            other = "Rome" if row["town"][0] == "Oslo" else "Oslo"
        row[column] = other
        shares = column_shares(model._fitted, row, [0])
        assert shares[0].argmax() == list(frame).index(column)
        assert shares[0].max() == pytest.approx(1.0)


def test_explained_rows_know_what_was_asked(blobs, model):
    found = model.explain(blobs[0][:2], 3)
    assert [one.row["x1"] for one in found] == blobs[0][:2, 1].tolist()
    assert model.explain(None, 3)[0].row is None


def test_a_review_shows_what_it_found_without_a_word_of_markup():
    X, y = make_blobs(120, 4, centers=2, cluster_std=2.0, random_state=0)
    labels = np.where(y == 1, "<b>one</b>", "two")
    labels[:3] = np.where(y[:3] == 1, "two", "<b>one</b>")
    found = review(fitted(X, labels))
    assert len(repr(found)) < 100
    shown = found._repr_html_()
    first = found.findings().iloc[0]
    assert f"{found.expected_wrong_labels()} labels" in shown
    assert re.search(r'class="face">(\d+)', shown)[1] == str(first["id"])
    assert "<b>" not in shown and "&lt;b&gt;one" in shown
    cases = found.findings()
    cases["kind"] = "changed by the caller"
    assert found.findings()["kind"].iloc[0] == "label"
