"""Abstention, sets and novelty: what they promise, for every kind of fit."""

import numpy as np
import pytest

from nearwise.estimators.uncertainty.calibration_rows import MOST_ROWS, calibration_rows
from nearwise.estimators.uncertainty.selective import Judge, risk_bound
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, logistic, reopened, same, table

HELD = {"cv": 0.3, "head": {"epochs": 3}, "train": {"epochs": 3}, "random_state": 0}
NOVEL = ["combined", "entropy"]


def many(n, seed=0):
    return blobs(n, 3, 4, seed=seed, spread=2.2)


def kinds():
    X, y = many(240)
    frame, words = table(200)
    return {
        "cross-fitted": (attn_knn(**{**CHEAP, "estimator": logistic()}), X, y, {}),
        "no base": (attn_knn(**CHEAP), X, y, {}),
        "table": (attn_knn(**CHEAP), frame, words, {}),
        "held out": (attn_knn(**HELD), X, y, {}),
        "views": (attn_knn(**HELD), X, y, {"views": [X + 0.1]}),
    }


@pytest.fixture(scope="module", params=kinds())
def case(request):
    model, X, y, more = kinds()[request.param]
    return model.fit(X, y, **more), X[:40], {k: [view[:40] for view in v] for k, v in more.items()}


@pytest.fixture(scope="module")
def model():
    return fitted(*many(300), estimator=logistic())


def everything(model, X, more):
    """All that rests on calibration rows, as arrays."""
    chosen = model.predict_selective(X, coverage=0.8, **more)
    return [
        chosen.labels,
        chosen.accepted,
        chosen.score,
        [chosen.threshold, chosen.risk_bound],
        model.predict_set(X, 0.8, **more),
        model.predict_set(X, 0.8, method="aps", seed=1, **more),
        model.novelty_score(X, **more),
        model.novelty_p_value(X, **more),
    ]


def test_every_kind_of_fit_answers_and_a_saved_one_bit_for_bit_the_same(case, tmp_path):
    model, X, more = case
    first = everything(model, X, more)
    labels, accepted, _, _, sets, _, strange, p = first
    assert same(labels, model.predict(X, **more))
    assert accepted.dtype == bool
    assert sets.shape == (40, len(model.classes_))
    assert strange.shape == (40,)
    assert ((p > 0) & (p <= 1)).all()
    again = everything(reopened(model, tmp_path / "model"), X, more)
    for one, other in zip(first, again, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("coverage", [0.05, 0.7, 1.0])
def test_a_threshold_accepts_the_share_of_calibration_rows_asked_for(model, coverage):
    chosen = model.predict_selective(many(50, 1)[0], coverage=coverage)
    assert chosen.coverage >= coverage
    assert chosen.n_calibration == 300
    rows = calibration_rows(model._predictor, 3, 1)
    values = rows.parts.proba.max(axis=1)
    assert chosen.n_accepted == (values >= chosen.threshold).sum()
    assert (values > chosen.threshold).sum() < coverage * 300
    wrong = ~rows.correct[values >= chosen.threshold]
    assert chosen.expected_risk == pytest.approx(wrong.mean())
    assert chosen.expected_risk < chosen.risk_bound
    assert same(chosen.accepted, chosen.score >= chosen.threshold)


def test_a_looser_risk_answers_more_rows_and_keeps_its_bound(model):
    X = many(40, 1)[0]
    found = [model.predict_selective(X, max_risk=risk) for risk in (0.3, 0.4, 0.5)]
    coverage = [one.coverage for one in found]
    assert coverage == sorted(coverage)
    for one, risk in zip(found, (0.3, 0.4, 0.5), strict=True):
        assert one.expected_risk < one.risk_bound <= risk


def test_the_risk_bound_holds_as_often_as_it_says():
    """Rows right with the probability of their score: the true risk is rarely above the bound."""
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(300):
        score = rng.random(200)
        right = rng.random(200) < 0.5 + 0.5 * score
        judge = Judge.__new__(Judge)
        judge.score, judge.spread = score, None
        judge.wrong = (~right).astype(float)
        judge.counts = np.ones(len(right))
        try:
            found, bound = judge.under_risk(0.25, 0.1)
        except ValueError:
            continue
        risk = 0.5 - 0.25 * (1 + found.value)  # mean over scores above the threshold
        broken += risk > bound
    assert broken <= 30  # 0.1 of 300


@pytest.mark.parametrize(("wrong", "n"), [(0, 10), (3, 50), (10, 10), (0, 1)])
def test_the_bound_is_the_share_at_which_so_few_errors_have_that_chance(wrong, n):
    from scipy.stats import binom

    bound = risk_bound(wrong, n, 0.05)
    assert binom.cdf(wrong, n, bound) == pytest.approx(1.0 if wrong == n else 0.05, abs=1e-6)


def test_sets_cover_new_rows_about_as_often_as_asked():
    X, y = many(900)
    model = fitted(X[:450], y[:450], estimator=logistic())
    for options in ({}, {"method": "aps", "seed": 0}, {"class_conditional": True}):
        sets = model.predict_set(X[450:], 0.9, **options)
        assert abs(sets[np.arange(450), y[450:]].mean() - 0.9) < 0.05


def test_surer_sets_are_larger_and_hold_the_less_sure_ones(model):
    X = many(60, 2)[0]
    for method in ("lac", "aps", "raps"):
        small, large = (model.predict_set(X, c, method=method) for c in (0.6, 0.95))
        assert (large | ~small).all()
        assert large.sum() > small.sum()


def test_sets_without_draws_hold_the_most_probable_class_and_empty_ones_can_be_filled(model):
    X = many(60, 2)[0]
    best = model.predict_proba(X).argmax(axis=1)
    for method in ("aps", "raps"):
        assert model.predict_set(X, 0.5, method=method)[np.arange(60), best].all()
    empty = ~model.predict_set(X, 0.3).any(axis=1)
    assert empty.any()
    filled = model.predict_set(X, 0.3, allow_empty=False)
    assert same(filled[~empty], model.predict_set(X, 0.3)[~empty])
    assert same(filled[empty], np.eye(3, dtype=bool)[best[empty]])


def test_a_seed_repeats_its_draws(model):
    X = many(60, 2)[0]
    sets = [model.predict_set(X, 0.7, method="aps", seed=seed) for seed in (5, 5, 6)]
    assert same(sets[0], sets[1])
    assert not same(sets[0], sets[2])


@pytest.mark.parametrize("score", NOVEL)
def test_a_larger_score_has_a_smaller_p_value(model, score):
    X = np.concatenate([many(50, 1)[0], many(10, 2)[0] + 40])
    strange, p = model.novelty_score(X, score), model.novelty_p_value(X, score)
    order = np.argsort(strange)
    assert (np.diff(p[order]) <= 0).all()


def test_far_rows_are_novel_and_known_ones_raise_few_alarms():
    X, y = many(800)
    model = fitted(X[:400], y[:400])
    assert (model.novelty_p_value(X[:5] + 60) <= 0.01).all()
    assert abs((model.novelty_p_value(X[400:]) <= 0.1).mean() - 0.1) < 0.05


def test_what_is_judged_by_follows_the_memory():
    X, y = many(200)
    model = fitted(X, y)
    before = model.predict_selective(X[:5], coverage=0.5)
    ids = model.add(X[:20] + 30, [7] * 20)
    after = model.predict_selective(X[:5] + 30, coverage=0.5)
    assert (before.n_calibration, after.n_calibration) == (200, 220)
    assert model.predict_set(X[:5] + 30, 0.8).shape == (5, 4)
    assert model.predict_set(X[:5] + 30, 0.8)[:, 3].all()  # the new class has its own rows by now
    assert (model.novelty_p_value(X[:5] + 30) > 0.02).all()
    model.remove(ids, forget_classes=True)
    assert model.predict_selective(X[:5], coverage=0.5).n_calibration == 200
    wrong_before = 1 - calibration_rows(model._predictor, 4, 1).correct.mean()
    model.relabel(np.arange(60), (y[:60] + 1) % 3)
    assert 1 - calibration_rows(model._predictor, 4, 1).correct.mean() > wrong_before


@pytest.mark.parametrize("settings", [CHEAP, HELD], ids=["cross-fitted", "held out"])
def test_rows_judge_in_the_class_shares_that_predictions_are_for(settings):
    X, y = many(2000)
    X, X_new, y, y_new = X[::2], X[1::2], y[::2], y[1::2]
    kept = np.random.default_rng(0).random(len(y)) < np.array([1.0, 0.3, 0.1])[y]
    model = attn_knn(**settings, class_prior="uniform").fit(X[kept], y[kept])
    rows = calibration_rows(model._predictor, 3, 1)
    shares = np.bincount(rows.labels) / len(rows.labels)
    assert np.abs(shares - 1 / 3).max() < 0.12  # in training .71, .21, .07
    covered = model.predict_set(X_new, 0.8)[np.arange(len(y_new)), y_new].mean()
    chosen = model.predict_selective(X_new, coverage=1.0)
    assert covered > 0.7
    assert (chosen.labels != y_new).mean() < chosen.risk_bound + 0.02


@pytest.mark.parametrize("shares", [(1.0, 0.3, 0.1), (1.0, 1.0, 1.0)], ids=["tail", "even"])
def test_rows_judge_in_the_wanted_shares_whatever_came_to_the_memory(shares):
    X, y = many(2700)
    first, more, new = (slice(start, start + 900) for start in (0, 900, 1800))
    X_new, y_new = X[new], y[new]
    kept = np.random.default_rng(0).random(900) < np.array(shares)[y[first]]
    model = attn_knn(**CHEAP, class_prior="uniform").fit(X[first][kept], y[first][kept])
    late = y[more] == 2
    model.add(X[more][late], y[more][late])
    rows = calibration_rows(model._predictor, 3, 1)
    assert np.abs(np.bincount(rows.labels) / len(rows.labels) - 1 / 3).max() < 0.1
    assert model.predict_set(X_new, 0.8)[np.arange(len(y_new)), y_new].mean() > 0.75


def test_held_out_rows_ask_the_memory_as_it_is():
    X, y = many(200)
    model = attn_knn(**HELD).fit(X, y)
    before = calibration_rows(model._predictor, 3, 1)
    assert len(before.labels) == 60
    learned = model.memory_.ids[~model._predictor.judged]
    model.remove(learned[:70])
    after = calibration_rows(model._predictor, 3, 1)
    assert same(before.labels, after.labels)
    assert after.distance.mean() > before.distance.mean()
    model.add(X[:3] + 30, [9] * 3)
    sets = model.predict_set(X[:3] + 30, 0.8)
    assert sets.shape == (3, 4)
    with pytest.raises(ValueError, match="9 has 3"):
        model.predict_set(X[:3], 0.8, class_conditional=True)


def test_rows_without_weight_are_not_judged_by():
    X, y = many(150)
    weight = np.ones(150)
    weight[:30] = 0
    model = attn_knn(**CHEAP).fit(X, y, sample_weight=weight)
    assert model.predict_selective(X[:3], coverage=0.5).n_calibration == 120


def test_of_a_large_memory_some_rows_are_taken(monkeypatch):
    monkeypatch.setattr("nearwise.estimators.uncertainty.calibration_rows.MOST_ROWS", 64)
    model = fitted(*many(150))
    rows = calibration_rows(model._predictor, 3, 1)
    assert len(rows.labels) == 64 < MOST_ROWS
    everyone = model.predict_proba(None)
    assert all((abs(everyone - row).sum(axis=1) < 1e-5).any() for row in rows.parts.proba)


BAD = {
    "neither": ({}, "neither was given"),
    "both": ({"coverage": 0.5, "max_risk": 0.1}, "both were given"),
    "no coverage": ({"coverage": 0.0}, r"coverage=0.0 must lie in \(0, 1\]"),
    "coverage in percent": ({"coverage": 90}, r"coverage=90 must lie in \(0, 1\]"),
    "coverage is no truth value": ({"coverage": True}, "coverage=True must be a number, not bool"),
    "confidence is none": ({"coverage": 0.5, "confidence": None}, "confidence=None must be a"),
    "no risk": ({"max_risk": 0.0}, "max_risk=0.0 must lie between"),
    "all risk": ({"max_risk": 1}, "max_risk=1 must lie between"),
    "confidence": ({"coverage": 0.5, "confidence": 1.0}, "confidence=1.0 must lie between"),
    "impossible": ({"max_risk": 1e-4}, "cannot be promised: the lowest bound, on 300 cal"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_what_to_do(model, name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        model.predict_selective(many(5)[0], **options)


BAD_SETS = [
    ({"penalty": -1}, "penalty=-1 must be finite and not negative"),
    ({"penalty": float("nan")}, "penalty=nan must be finite"),
    ({"penalty": "much"}, "penalty='much' must be a number, not str"),
    ({"free_ranks": 1.5}, "free_ranks=1.5 counts classes"),
    ({"confidence": "0.9"}, "confidence='0.9' must be a number, not str"),
    ({"confidence": None}, "confidence=None must be a number, not NoneType"),
]


def test_bad_requests_for_sets_and_novelty_are_refused(model):
    X = many(5)[0]
    for confidence in (0.0, 1.0, 90):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            model.predict_set(X, confidence)
    with pytest.raises(ValueError, match="method='best' is not known"):
        model.predict_set(X, method="best")
    for given, message in BAD_SETS:
        with pytest.raises(ValueError, match=message):
            model.predict_set(X, method="raps", **given)
    with pytest.raises(ValueError, match="at least 999 rows to judge by, and there are 300"):
        model.predict_set(X, 0.999)
    with pytest.raises(ValueError, match="score='odd' is not known"):
        model.novelty_score(X, "odd")
    with pytest.raises(ValueError, match="Give new rows"):
        model.predict_set(None)


def test_explanations_say_how_far_to_trust_them_where_asked(model):
    X = many(30, seed=5)[0]
    assert model.explain(X[:1])[0].novelty_p_value is None
    shown = model.explain(X, n_neighbors=2, trust=True)
    assert same([one.novelty_p_value for one in shown], model.novelty_p_value(X))
    sets = [list(model.classes_[held]) for held in model.predict_set(X, 0.9)]
    assert [one.prediction_set for one in shown] == sets
    assert [one.to_dict()["prediction_set"] for one in shown] == sets
    assert same([one.to_dict()["novelty_p_value"] for one in shown], model.novelty_p_value(X))
    assert "prediction_set" not in model.explain(X[:1])[0].to_dict()
    with pytest.raises(ValueError, match="Give new rows as X"):
        model.explain(trust=True)
