"""AttnKNNRegressor: the contract, the distribution, and what it refuses."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.datasets import load_diabetes
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from nearwise import AttnKNNClassifier, AttnKNNRegressor
from tests.estimators.numbers.cases import QUICK, fitted, fresh, table

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight 2 is one neighbor with twice the share, not two neighbors among the k, "
        "and repeated rows fall into other folds"
    ),
    "check_sample_weight_equivalence_on_sparse_data": "the same",
    "check_dataframe_column_names_consistency": (
        "columns in another order are matched by name, not refused"
    ),
}


def new_rows():
    X, y = table()
    return X[120:], y[120:]


@parametrize_with_checks(
    [AttnKNNRegressor(**QUICK, estimator=None)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, QUICK], ids=["default", "instant"])
def test_scikit_learns_own_checks_with_a_base(options):
    check_estimator(AttnKNNRegressor(**options), expected_failed_checks=EXPECTED_FAILURES)


def test_it_is_a_regressor_that_scikit_learns_tools_take():
    X, y = table()
    model = AttnKNNRegressor(**QUICK)
    assert is_regressor(model)
    pipeline = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.5
    search = GridSearchCV(model, {"n_neighbors": [4, 16], "settings__index": ["exact"]}, cv=2)
    assert search.fit(X, y).best_estimator_.predict(X[:3]).shape == (3,)


def test_equal_seeds_give_equal_models():
    X, y = table()
    one, other = fitted(), clone(fitted()).fit(X[:120], y[:120])
    assert np.array_equal(one.predict_quantiles(X), other.predict_quantiles(X))


def test_pickled_models_predict_the_same():
    X, _ = new_rows()
    again = pickle.loads(pickle.dumps(fitted()))
    assert np.array_equal(again.predict_interval(X), fitted().predict_interval(X))


@pytest.mark.parametrize("estimator", ["auto", None, LinearRegression()], ids=str)
@pytest.mark.parametrize("preset", ["default", "instant"])
def test_new_rows_are_predicted_better_than_by_the_mean(estimator, preset):
    if preset == "instant" and not isinstance(estimator, str | None):
        pytest.skip("a base of one's own is fitted by folds")
    X, y = new_rows()
    model = fitted(estimator=estimator, preset=preset)
    baseline = np.abs(y - table()[1][:120].mean()).mean()
    assert model.crps(X, y).mean() < 0.45 * baseline
    assert np.mean((model.predict(X) - y) ** 2) < 0.3 * np.var(y)


@pytest.mark.parametrize("options", [{}, {"estimator": None}, {"preset": "default", "cv": 0.25}])
def test_intervals_hold_about_as_many_targets_as_they_promise(options):
    rows, hits = [], []
    for seed in range(3):
        X, y = table(320, seed=seed + 1)
        model = AttnKNNRegressor(**QUICK | options).fit(X[:200], y[:200])
        low, high = model.predict_interval(X[200:]).T
        hits.append((low <= y[200:]) & (y[200:] <= high))
        rows.append(len(hits[-1]))
    assert abs(np.concatenate(hits).mean() - 0.9) < 0.06  # 3 standard errors of 360 rows


def test_intervals_are_wider_where_the_noise_is_larger():
    X, y = table(600, seed=3)
    model = AttnKNNRegressor(**QUICK).fit(X[:500], y[:500])
    width = np.diff(model.predict_interval(X[500:]), axis=1)[:, 0]
    noisy = X[500:, 1] > 0.5
    assert width[noisy].mean() > 1.5 * width[X[500:, 1] < -0.5].mean()


def test_the_distribution_agrees_with_itself():
    X, _ = new_rows()
    model, levels = fitted(), [0.01, 0.05, 0.5, 0.95, 0.99]
    quantiles = model.predict_quantiles(X, levels)
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(model.predict_cdf(X, quantiles), [levels] * len(X), atol=1e-9)
    np.testing.assert_allclose(model.predict(X, output="median"), quantiles[:, 2])
    drawn = model.sample(X, 4000, random_state=0)
    np.testing.assert_allclose(drawn.mean(1), model.predict(X), atol=0.1)
    assert np.array_equal(drawn, model.sample(X, 4000, random_state=0))
    assert np.isfinite(model.predict(X, output="mode")).all()


def test_predictions_move_and_stretch_with_the_targets():
    X, y = table()
    plain = fitted(estimator=None).predict_quantiles(X[120:])
    moved = AttnKNNRegressor(**QUICK, estimator=None).fit(X[:120], 1e4 * y[:120] - 7e5)
    np.testing.assert_allclose(moved.predict_quantiles(X[120:]), 1e4 * plain - 7e5, rtol=1e-4)


def test_counts_are_never_predicted_below_zero():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(X[:, 0] - 1.0))
    model = AttnKNNRegressor(**QUICK).fit(X, y)
    assert model.report_.bounds[0] == 0.0
    assert model.predict_quantiles(X, [0.01, 0.5]).min() >= 0.0
    assert model.sample(X, 20, random_state=0).min() >= 0.0
    assert (model.predict_cdf(X, -0.1) == 0).all()
    assert model.predict(X).min() > 0.0


def test_capped_targets_are_not_predicted_beyond_the_cap():
    X, y = table()
    model = AttnKNNRegressor(**QUICK).fit(X, np.minimum(y, 1.0))
    assert model.report_.bounds == (-np.inf, 1.0)
    assert model.predict_quantiles(X, [0.99]).max() == 1.0


def test_constant_targets_are_predicted_as_they_are():
    X, _ = table()
    for options in ({}, {"estimator": None}, {"preset": "default"}):
        model = AttnKNNRegressor(**QUICK | options).fit(X[:60], np.full(60, 3.25))
        np.testing.assert_allclose(model.predict_interval(X[60:]), 3.25, rtol=1e-6)


def test_two_modes_are_both_in_the_distribution():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = np.where(rng.random(600) < 0.5, -4.0, 4.0) + X[:, 0] + 0.2 * rng.normal(size=600)
    model = AttnKNNRegressor(**QUICK, estimator=None).fit(X, y)
    middle = model.predict_cdf(X[:50], np.tile([-2.0, 2.0], (50, 1)))
    assert (middle[:, 1] - middle[:, 0]).mean() < 0.1
    assert abs(middle[:, 0].mean() - 0.5) < 0.1


def test_a_rows_own_target_does_not_reach_its_own_left_out_prediction():
    model = fresh(estimator=None, settings={"calibration": None})
    before, features = model.predict(), model.report_.choice["features"]
    model.relabel([5], [table()[1][5] + 3])
    assert model.report_.choice["features"] == features  # the map is chosen by all targets
    after = model.predict()
    assert after[5] == pytest.approx(before[5], rel=1e-6)
    assert not np.allclose(after, before)


def test_left_out_predictions_tell_the_error_on_new_rows():
    X, y = table(600, seed=4)
    model = AttnKNNRegressor(**QUICK).fit(X[:400], y[:400])
    left_out = np.mean((model.predict() - y[:400]) ** 2)
    assert left_out == pytest.approx(np.mean((model.predict(X[400:]) - y[400:]) ** 2), rel=0.4)


def test_rows_far_away_are_novel():
    X, _ = new_rows()
    model = fitted()
    assert (model.novelty_p_value(X + 50) < 0.05).all()
    assert 0.3 < model.novelty_p_value(X).mean() < 0.7
    assert model.novelty_score(X + 50).min() > model.novelty_score(X).max()


def test_rows_unlike_all_others_are_not_predicted_far_beyond_the_targets():
    _, y = table()
    found = fitted(preset="default", estimator=LinearRegression()).predict(1e6 * np.eye(3))
    assert (found < y.max() + np.ptp(y)).all()
    assert (found > y.min() - np.ptp(y)).all()


def test_columns_of_a_frame_are_read_as_the_classifier_reads_them():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Bern", "Oslo", None], 120),
            "size": rng.uniform(20, 200, 120).round(1),
            "built": pd.date_range("1990-01-01", periods=120, freq="30D").strftime("%Y-%m-%d"),
        }
    )
    price = frame["size"] * 3 + (frame["city"] == "Oslo") * 100
    model = AttnKNNRegressor(**QUICK).fit(frame, price.rename("price"))
    assert model.report_.columns == {"city": "category", "size": "number", "built": "date"}
    assert model.fitted_.target_name == "price"
    shuffled = frame[["built", "size", "city"]]
    assert np.array_equal(model.predict(shuffled), model.predict(frame))


@pytest.mark.parametrize(
    ("cv", "held_out"),
    [(0.25, 30), ("latest", 24), (ShuffleSplit(1, test_size=20, random_state=0), 20)],
    ids=["share", "latest", "splitter"],
)
def test_rows_held_out_once_are_the_ones_that_calibrate(cv, held_out):
    model = fitted(preset="default", cv=cv)
    assert model.report_.choice["held_out"] == held_out
    assert len(model.query(new_rows()[0]).calibration_numbers().counts) == held_out


def test_a_splitter_with_several_splits_is_a_cross_fit():
    model = fitted(preset="default", cv=KFold(3))
    assert {len(one.folds) for one in model.fitted_.predictor.row_models.base.candidates} <= {1, 3}


def test_rows_of_a_group_are_no_neighbors_of_each_other():
    X, y = table()
    groups = np.arange(120) // 4
    model = AttnKNNRegressor(**QUICK).fit(X[:120], y[:120], groups=groups)
    _, ids = model.kneighbors(n_neighbors=5)
    assert (ids // 4 != groups[:, None]).all()
    assert model.query(X[120:]).calibration_numbers().counts.sum() == pytest.approx(30)


def test_weightless_rows_teach_nothing_without_a_base():
    X, y = table()
    spoiled, weight = y[:120].copy(), np.ones(120)
    spoiled[:40], weight[:40] = 1e3, 0.0
    options = QUICK | {"estimator": None}
    with_them = AttnKNNRegressor(**options).fit(X[:120], spoiled, sample_weight=weight)
    assert np.abs(with_them.predict(X[120:])).max() < 10


WRONG = [
    (None, "requires y to be passed"),
    (np.r_[np.nan, np.zeros(119)], "NaN or missing targets in 1 of 120"),
    (np.r_[np.inf, np.zeros(119)], "infinity or a value too large"),
    (np.r_[1e200, np.zeros(119)], "rescale"),
    (np.array(["a"] * 120), "'a', which is no number"),
    (np.zeros((120, 2, 2)), "one column per target"),
    (np.zeros(5), "120 rows but y has 5"),
    (np.zeros(120, dtype=complex), "Complex data not supported"),
    (np.zeros(120, dtype="datetime64[s]"), "dates"),
]


@pytest.mark.parametrize(("y", "message"), WRONG, ids=[message for _, message in WRONG])
def test_targets_that_are_no_numbers_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        AttnKNNRegressor(**QUICK).fit(table()[0][:120], y)


def test_numbers_as_text_and_a_column_are_taken():
    X, y = table()
    text = AttnKNNRegressor(**QUICK).fit(X[:120], [str(value) for value in y[:120]])
    with pytest.warns(DataConversionWarning):
        column = AttnKNNRegressor(**QUICK).fit(X[:120], y[:120, None])
    for model in (text, column):
        assert np.array_equal(model.predict(X[120:]), fitted().predict(X[120:]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "forest"}, 'Use "auto", None or a regressor'),
        ({"estimator": AttnKNNClassifier()}, "a scikit-learn regressor"),
        ({"preset": "fast"}, "not known"),
        ({"settings": {"max_per_class": 5}}, "no use for the settings max_per_class"),
        ({"settings": {"calibration": "per-class"}}, "no use for the settings calibration"),
        ({"n_neighbors": 200}, "more than the 64"),
        ({"cv": 0.25}, 'does not fit preset="instant"'),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_are_refused(options, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        AttnKNNRegressor(**QUICK | options).fit(X[:120], y[:120])


def test_class_prior_is_no_parameter():
    with pytest.raises(TypeError, match="class_prior"):
        AttnKNNRegressor(class_prior="uniform")


def test_images_and_two_rows_are_refused():
    with pytest.raises(ValueError, match="Embed them first"):
        AttnKNNRegressor().fit(np.zeros((20, 8, 8, 3), np.uint8), np.arange(20))
    with pytest.raises(ValueError, match="at least 3"):
        AttnKNNRegressor().fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize("n_rows", [3, 4, 8, 20])
def test_few_rows_are_fitted(n_rows):
    X, y = table()
    model = AttnKNNRegressor(random_state=0).fit(X[:n_rows], y[:n_rows])
    assert np.isfinite(model.predict_quantiles(X[120:])).all()
    if n_rows < 19:
        with pytest.raises(ValueError, match="19 calibration rows"):
            model.predict_interval(X[120:])


def test_questions_that_cannot_be_answered_are_refused():
    X, _ = new_rows()
    with pytest.raises(NotFittedError):
        AttnKNNRegressor().predict(X)
    model = fitted()
    for ask, message in (
        (lambda: model.predict(X, output="mid"), "mean"),
        (lambda: model.predict_quantiles(X, [0.0, 0.5]), "between 0 and 1"),
        (lambda: model.predict_quantiles(X, 0.5), "between 0 and 1"),
        (lambda: model.predict_interval(X, 1.5), "confidence"),
        (lambda: model.predict_interval(None), "Give new rows"),
        (lambda: model.predict_interval(X, 0.999), "1999 calibration rows"),
        (lambda: model.predict_cdf(X, [1.0, 2.0]), "40 rows"),
        (lambda: model.explain(X, n_neighbors=0), "n_neighbors"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


def test_explanations_show_the_rows_behind_a_prediction():
    X, _ = new_rows()
    model = fitted()
    shown = model.explain(X[:5], n_neighbors=None)
    for at, one in enumerate(shown):
        total = sum(neighbor.weight for neighbor in one.neighbors) + one.null_mass
        assert total == pytest.approx(1.0, abs=1e-5)
        assert one.prediction == pytest.approx(model.predict(X[at : at + 1])[0])
        alone = model.predict_interval(X[at : at + 1])[0]
        np.testing.assert_allclose(one.interval, alone, atol=1e-5)  # layers round by the batch
        weights = [neighbor.weight for neighbor in one.neighbors]
        assert weights == sorted(weights, reverse=True)
        for neighbor in one.neighbors:
            assert neighbor.target == table()[1][neighbor.id]
            assert neighbor.interval_without[0] < neighbor.interval_without[1]
    frame = shown[0].to_frame()
    assert list(frame.columns[:4]) == ["id", "target", "weight", "distance"]
    assert shown[0].row == dict(zip(["x0", "x1", "x2"], X[0].tolist(), strict=True))
    assert shown[0].to_dict()["neighbors"][0]["id"] == shown[0].neighbors[0].id


def test_a_prediction_without_a_neighbor_is_what_the_others_say():
    X, y = table()
    model = AttnKNNRegressor(**QUICK, estimator=None, n_neighbors=4).fit(X[:120], y[:120])
    one = model.explain(X[120:121], n_neighbors=None)[0]
    heavy = one.neighbors[0]
    others = [neighbor.target for neighbor in one.neighbors[1:]]
    moved = heavy.prediction_without - one.prediction
    assert np.sign(moved) == np.sign(np.mean(others) - heavy.target) or abs(moved) < 0.05


def test_diabetes_is_predicted_as_well_as_by_a_linear_model():
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:340], order[340:]
    model = AttnKNNRegressor(random_state=0).fit(X[train], y[train])
    linear = LinearRegression().fit(X[train], y[train]).predict(X[test])
    ours = np.mean((model.predict(X[test]) - y[test]) ** 2)
    assert ours < 1.05 * np.mean((linear - y[test]) ** 2)


def test_new_rows_have_narrower_distributions_than_left_out_ones():
    """A base has learned a left-out row through its neighbors; new rows it predicts better."""
    X, y = table(400, noise=0.02)
    model = AttnKNNRegressor(**QUICK).fit(X, y)
    spread = model.fitted_.predictor.spread
    assert 0.5 < spread.factor < 0.95 * spread.left_out
    alone = AttnKNNRegressor(**QUICK | {"estimator": None}).fit(X, y).fitted_.predictor.spread
    assert alone.factor == alone.left_out
    once = AttnKNNRegressor(random_state=0, cv=0.3).fit(X[:80], y[:80]).fitted_.predictor.spread
    assert once.factor == once.left_out
    rows, truth = table(900, seed=3, noise=0.02)
    low, high = model.predict_interval(rows).T
    assert abs(((low <= truth) & (truth <= high)).mean() - 0.9) < 0.05


@pytest.mark.parametrize("n", [3, 4, 7, 12, 19, 33])
@pytest.mark.parametrize("preset", ["instant", "default"])
def test_tables_of_few_rows_are_learned(n, preset):
    X, y = table()
    model = AttnKNNRegressor(preset=preset, random_state=0, n_jobs=1).fit(X[:n], y[:n])
    assert np.isfinite(model.predict_quantiles(X[100:])).all()
    assert (
        np.abs(model.predict(X[100:]) - y[100:]).mean() < 2 * np.abs(y[100:] - y[:n].mean()).mean()
    )


def test_a_fit_of_few_rows_does_not_warn_of_its_own_candidates():
    """Batches of a network are larger than the rows of a fold, and it stops early."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(34, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3]
        model = AttnKNNRegressor(random_state=0, n_jobs=1).fit(X, y)
    assert "mlp" in model.report_.choice["base"]
