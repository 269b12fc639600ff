"""What an estimate of wrong labels must show before it is believed, and answers on pure noise."""

import json
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nearwise import review
from nearwise.cli.answer_columns import wrong_labels_line
from nearwise.estimators.fit.parameter_checks import check_settings
from nearwise.estimators.fit.problem import Problem, Unseen
from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.noise import fitting
from nearwise.estimators.noise.fitting import find_label_model, softened_losses
from nearwise.estimators.noise.transition import Transition, signal_of, taken_in_part, weigh
from nearwise.estimators.noise.true_labels import TrueLabelPredictor
from nearwise.estimators.progress import Progress
from tests.estimators.cases import CHEAP, attn_knn, blobs, reopened, same, sums_to_one, wrong_labels


def estimate(rate, low, high):
    matrix = (1 - rate) * np.eye(3) + rate / 2 * (1 - np.eye(3))
    return Transition(matrix, rate, (low, high), matrix - 0.01, matrix + 0.01, "rows")


def pure_noise(n_classes, seed, n=200):
    """Rows and labels that have nothing to do with each other, and as many fresh ones."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, n, 4)), rng.integers(0, n_classes, (2, n))


def test_signal_counts_standard_errors():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet([1, 1, 2], 400)
    drawn = np.array(
        [signal_of(proba, rng.choice(3, 400, p=[0.2, 0.2, 0.6]), None) for _ in range(200)]
    )
    assert abs(drawn.mean()) < 0.3 and 0.85 < drawn.std() < 1.15
    labels = np.array([rng.choice(3, p=p) for p in proba])
    assert signal_of(proba, labels, None) > 6
    assert abs(signal_of(np.tile([0.2, 0.3, 0.5], (400, 1)), labels, None)) < 1e-9


def test_signal_is_that_of_the_rows_that_have_weight():
    rng = np.random.default_rng(0)
    proba, labels = rng.dirichlet([1, 1], 300), rng.integers(0, 2, 300)
    right = proba.argmax(axis=1)
    mixed = np.where(np.arange(300) < 150, right, labels)
    weight = (np.arange(300) >= 150).astype(float)
    assert signal_of(proba, mixed, None) > 5
    assert abs(signal_of(proba, mixed, weight)) < 3


def test_softened_predictions_do_no_worse_than_the_class_shares():
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 300, p=[0.1, 0.3, 0.6])
    sure_and_wrong = np.log(rng.dirichlet([0.1] * 3, 300) * 0.97 + 0.01)
    shares = np.bincount(labels) / 300
    assert softened_losses(sure_and_wrong, labels, None).mean() < -(shares @ np.log(shares)) + 0.01


@pytest.mark.parametrize(
    ("found", "signal", "evidence", "share", "reason"),
    [
        (estimate(0.3, 0.2, 0.4), 8.0, 3.0, 1.0, ""),
        (estimate(0.3, 0.2, 0.4), 8.0, 0.0, 1.0, ""),
        (estimate(0.3, 0.2, 0.4), 8.0, np.log(0.25), 0.25, "better than"),
        (estimate(0.3, 0.2, 0.4), 2.9, 50.0, 0.0, "no more .* than class shares"),
        (estimate(0.559, 0.609, 0.75), 8.0, 50.0, 0.0, r"0\.56 leaves \[0\.61, 0\.75\]"),
    ],
)
def test_an_estimate_is_taken_as_far_as_labels_bear_it_out(found, signal, evidence, share, reason):
    taken, why = weigh(found, signal, evidence)
    assert taken == pytest.approx(share)
    assert (why == "") == (reason == "")
    assert re.search(reason, why)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_what_is_taken_in_part_lies_in_an_interval_up_to_what_was_found(share):
    found = estimate(0.559, 0.609, 0.75)
    part = taken_in_part(found, share)
    assert part.rate == pytest.approx(share * 0.559)
    assert part.interval[0] <= part.rate <= part.interval[1] == 0.75
    assert (part.low <= part.matrix).all() and (part.matrix <= part.high).all()
    np.testing.assert_allclose(part.matrix.sum(axis=1), 1)
    assert taken_in_part(found, 1.0) is found


def hard_rows(n=3000, share=1.0):
    """Rows, some of them hard; labels wrong more often on these, a `share` of what is usual."""
    rng = np.random.default_rng(0)
    truth, hard = rng.integers(0, 4, n), rng.uniform(0.2, 1.6, n)
    keys = 2 * np.eye(4)[truth] + hard[:, None] * rng.normal(size=(n, 4))
    wrong = rng.uniform(size=n) < share * (0.05 + 0.35 * hard)
    given = np.where(wrong, (truth + rng.integers(1, 4, n)) % 4, truth)
    return keys, truth, given


def found_rate(keys, given, agreement):
    """Rate of wrong labels found, how sure predictions of the true ones then are, and the note."""
    model, note, rows = sought(keys, given, agreement)
    confidence = model.rows.log_proba[0, rows].exp().amax(1).mean()
    return model.transition, float(confidence), note


def sought(keys, given, agreement):
    """Label model, what is noted of it, and the rows that it was found on."""
    rows = np.arange(len(given))
    folds = [(rows[: len(rows) // 2], rows[len(rows) // 2 :])]
    problem = Problem(ImageEncoder(8, 8, 1), None, given, None, 4, folds=folds)
    settings = check_settings(attn_knn(cv=0.5, estimator=None), len(given), 4, 0)
    # networks fitted to smoothed labels are too unsure, which powers mend
    log_proba = torch.log_softmax(torch.from_numpy(0.5 * keys).float(), dim=1)
    unseen = Unseen(torch.from_numpy(keys).float(), log_proba, agreement=agreement)
    with Progress(0) as progress:
        model = find_label_model(TrueLabelPredictor(problem, settings, unseen, progress, None))
    return model, problem.choice["label_noise"], folds[0][0]


def test_where_people_err_on_hard_rows_the_rate_follows_what_networks_agree_on():
    keys, truth, given = hard_rows()
    right = (keys.argmax(1) == truth).mean()
    wrong = (given != truth).mean()
    alone, unsure, _ = found_rate(keys, given, None)
    found, sure, note = found_rate(keys, given, right)
    assert abs(found.rate - wrong) < abs(alone.rate - wrong) and note["agreement"] == right
    assert abs(sure - right) < abs(unsure - right) and abs(sure - right) < 0.05
    assert found.interval[0] < found.rate < found.interval[1]
    same_again, _, _ = found_rate(keys, given, unsure)  # they agree as often as predictions say
    assert same_again.rate == pytest.approx(alone.rate)
    more, _, _ = found_rate(keys, given, right + 0.03)
    assert alone.rate < found.rate < more.rate
    out_of_reach, _, note = found_rate(keys, given, 1.0)  # no rate makes predictions as sure
    assert out_of_reach.rate == pytest.approx(alone.rate) and "agreement" not in note


def test_networks_that_agree_on_the_same_mistakes_do_not_raise_a_rate_that_labels_bear_out():
    keys, truth, _ = hard_rows(12_000)
    given = wrong_labels(truth, 0.1)
    agreement = (keys.argmax(1) == truth).mean() + 0.03
    notes = [sought(keys, given, agreed)[1] for agreed in (agreement, None)]
    assert notes[0]["rate"] == notes[1]["rate"] == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize(
    ("n", "share", "doubted"), [(12_000, 0.12, True), (12_000, 0.0, False), (3_000, 0.12, False)]
)
def test_fewer_wrong_labels_are_looked_for_among_many_images(n, share, doubted):
    keys, truth, given = hard_rows(n, share)
    agreement = (keys.argmax(1) == truth).mean()
    notes = [sought(keys, given, agreed)[1] for agreed in (agreement, None)]
    assert ["decision" not in note for note in notes] == [doubted, False]
    assert [0.02 < note["rate"] < 0.06 for note in notes] == [share > 0] * 2


@pytest.fixture(scope="module", params=[(3, "auto"), (10, "auto"), (3, 0.3)], ids=str)
def on_pure_noise(request):
    """A classifier of pure noise, what `fit` warned of, its training and its fresh rows."""
    n_classes, noise = request.param
    (X, fresh), (y, truth) = pure_noise(n_classes, seed=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = attn_knn(label_noise=noise, **CHEAP).fit(X, y)
    return model, [str(one.message) for one in said], (X, y), (fresh, truth)


def test_pure_noise_is_answered_by_the_class_shares_with_a_warning(on_pure_noise):
    model, said, (_, y), (fresh, truth) = on_pure_noise
    assert sum("no better than the class shares" in one for one in said) == 1
    proba = model.predict_proba(fresh)
    chance = -np.log((np.bincount(y) / len(y))[truth]).mean()
    assert -np.log(proba[np.arange(len(truth)), truth]).mean() < chance + 0.01
    assert sums_to_one(proba)
    assert model.report_.choice["label_noise"]["answers"] == "class shares"


def test_what_was_made_of_pure_noise_is_said_and_saved(on_pure_noise, tmp_path):
    model, said, (_, y), (fresh, _) = on_pure_noise
    note = model.report_.choice["label_noise"]
    assert note["interval"][0] <= review(model).noise.rate <= note["interval"][1]
    assert json.loads(json.dumps(note, allow_nan=False)) == note
    line = wrong_labels_line(model)
    assert "Predictions are the class shares." in line
    if model.label_noise == "auto":
        assert any("labels are taken as they are" in one for one in said)
        assert "Wrong labels: not known (between 0.0 % and" in line
        noise = review(model).noise
        assert noise.rate == 0 and same(noise.matrix, np.eye(len(model.classes_)))
        assert same(model._predictor.views.labels, y)
        assert (noise.low <= noise.matrix).all() and (noise.matrix <= noise.high).all()
    again = reopened(model, tmp_path / "model")
    assert same(again.predict_proba(fresh), model.predict_proba(fresh))
    assert review(again).noise.rate == review(model).noise.rate
    assert again.report_.choice["label_noise"] == note


@pytest.fixture(scope="module")
def informative():
    X, y = blobs(150, 3, spread=0.6)
    given = wrong_labels(y, 0.3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = attn_knn(label_noise="auto", **CHEAP).fit(X, given)
    return model, [str(one.message) for one in said], X, given


def test_thirty_percent_of_few_informative_rows_are_believed(informative):
    model, said, _, _ = informative
    note = model.report_.choice["label_noise"]
    assert note["taken"] == 1 and "decision" not in note and 0.2 < review(model).noise.rate < 0.4
    assert not [one for one in said if "label_noise" in one]
    assert "95 % interval" in wrong_labels_line(model)


def test_overlap_that_explains_labels_better_draws_the_rate_down(informative, monkeypatch):
    whole, _, X, given = informative
    monkeypatch.setattr(fitting, "_evidence", lambda *_: float(np.log(0.6)))
    with pytest.warns(UserWarning, match="60% of the estimated rate is taken"):
        part = attn_knn(label_noise="auto", **CHEAP).fit(X, given)
    assert review(part).noise.rate == pytest.approx(0.6 * review(whole).noise.rate, rel=0.25)
    assert not part._predictor.label_model.as_given
    assert part.predict_proba(X).max(axis=1).mean() < whole.predict_proba(X).max(axis=1).mean()


def test_the_line_says_a_rate_that_was_given():
    report = SimpleNamespace(choice={"label_noise": {"interval": [0.3, 0.3], "rate": 0.3}})
    classifier = SimpleNamespace(report_=report, classes_=np.arange(2))
    assert wrong_labels_line(classifier) == "Wrong labels: 30.0 %."
    assert wrong_labels_line(SimpleNamespace(report_=report)) == "Wrong targets: 30.0 %."


@pytest.mark.slow
def test_twenty_draws_of_pure_noise_stay_at_chance(load_benchmark, tmp_path):
    found = load_benchmark("pure_noise").main(
        ["--out", str(tmp_path / "rows"), "--results", str(tmp_path)]
    )
    assert len(found) == 6
    for one in found:
        assert one["draws"] == one["warned"] == 20, one
        assert one["above_worst"] < 0.01, one
