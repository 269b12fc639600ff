"""Wrong labels: the transition, what is learned through it, and what a row's own label moves."""

import numpy as np
import pytest
import torch

from nearwise import review
from nearwise.estimators import audited_transition
from nearwise.estimators.fit import image_networks
from nearwise.estimators.fit.networks import fit_apart
from nearwise.estimators.fit.parameter_checks import check_checkpoint, check_settings
from nearwise.estimators.fit.problem import LabelFitter, Problem, Unseen, make_folds
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.label_model import AS_GIVEN
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.noise.fitting import NoisyLabelFitter
from nearwise.estimators.noise.noisy_labels import (
    NoisyLabels,
    TrainingRows,
    given_log_proba,
    posterior_log_proba,
)
from nearwise.estimators.noise.transition import (
    check_label_noise,
    estimate_transition,
    known_transition,
    with_interval,
)
from nearwise.estimators.noise.true_labels import TrueLabelPredictor
from nearwise.estimators.progress import Progress
from tests.estimators.cases import (
    CHEAP,
    attn_knn,
    blobs,
    drawn_labels,
    logistic,
    same,
    sums_to_one,
    wrong_labels,
)
from tests.estimators.image_cases import QUICK, patches

CLASSES = np.array(["a", "b", "c"])


def even(rate, n=3):
    return (1 - rate) * np.eye(n) + rate / (n - 1) * (1 - np.eye(n))


def sure_proba(n, seed=0, confidence=0.97):
    """Calibrated probabilities, the true classes drawn from them, and labels 30 % wrong."""
    rng = np.random.default_rng(seed)
    top = rng.integers(0, 3, n)
    proba = np.where(np.eye(3)[top] == 1, confidence, (1 - confidence) / 2)
    true = np.array([rng.choice(3, p=p) for p in proba])
    return proba, true, wrong_labels(true, 0.3, seed=seed)


@pytest.fixture(scope="module")
def noisy():
    X, y = blobs(240, 3, spread=0.9)
    return X, y, wrong_labels(y, 0.3, seed=1)


@pytest.fixture(scope="module")
def fitted_noisy(noisy):
    X, _, given = noisy
    settings = {**CHEAP, "estimator": logistic()}
    return attn_knn(label_noise="auto", **settings).fit(X, given)


def test_given_labels_follow_from_true_ones_by_the_transition():
    log_proba = torch.log_softmax(torch.randn(5, 3), 1)
    matrix = torch.tensor([[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
    expected = torch.zeros(5, 3)
    for i in range(5):
        for true in range(3):
            for given in range(3):
                expected[i, given] += log_proba[i, true].exp() * matrix[true, given]
    torch.testing.assert_close(given_log_proba(log_proba, matrix).exp(), expected)
    assert AS_GIVEN.given_log_proba(log_proba) is log_proba


def test_posterior_is_bayes_rule():
    log_proba = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    matrix = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    found = posterior_log_proba(log_proba, matrix, torch.tensor([1, 1])).exp()
    expected = torch.tensor([[0.05, 0.30], [0.09, 0.06]])
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True))


def test_transition_is_found_within_its_interval():
    proba, _, given = sure_proba(2000)
    found = with_interval(proba, given, seed=0)
    assert found.interval[0] < 0.3 < found.interval[1] + 0.03
    assert abs(found.rate - 0.3) < 0.03
    assert (found.low <= found.matrix + 1e-9).all() and (found.matrix <= found.high + 1e-9).all()
    np.testing.assert_allclose(found.matrix.sum(1), 1)


def test_rows_without_wrong_labels_show_next_to_none():
    proba, true, _ = sure_proba(1500)
    assert np.diag(estimate_transition(proba, true)).min() > 0.95


def test_classes_that_err_each_in_their_own_way_are_told_apart():
    proba, true, _ = sure_proba(4000, confidence=0.99)
    matrix = np.array([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])
    given = drawn_labels(true, matrix)
    np.testing.assert_allclose(estimate_transition(proba, given), matrix, atol=0.05)


def test_checked_rows_say_how_labels_come_about():
    true = np.repeat(CLASSES, 2000)
    matrix = np.array([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])
    given = drawn_labels(true, matrix)
    np.testing.assert_allclose(audited_transition(given, true), matrix, atol=0.03)
    few = np.random.default_rng(0).permutation(len(true))[:400]
    found = audited_transition(wrong_labels(true, 0.3, seed=1)[few], true[few])
    np.testing.assert_allclose(found, even(0.3), atol=0.06)  # classes err alike
    wider = audited_transition(given, true, classes=["a", "b", "c", "d"])
    np.testing.assert_allclose(wider.sum(axis=1), 1)
    check_label_noise(wider, np.array(["a", "b", "c", "d"]))


@pytest.mark.parametrize(
    ("given", "true", "classes", "said"),
    [
        (["a"] * 30, ["a"] * 29, None, "shape"),
        (["a"] * 5, ["b"] * 5, None, "5 checked rows"),
        (["a"] * 30, ["z"] * 30, ["a", "b"], "true holds .*z.*not among"),
    ],
)
def test_an_audit_that_cannot_be_counted_is_refused(given, true, classes, said):
    with pytest.raises(ValueError, match=said):
        audited_transition(given, true, classes=classes)


def test_a_rate_is_spread_evenly_and_none_stays_none():
    np.testing.assert_allclose(check_label_noise(0.3, CLASSES), even(0.3))
    np.testing.assert_allclose(check_label_noise(0, CLASSES), np.eye(3))
    assert check_label_noise("auto", CLASSES) == "auto"


def test_rate_of_a_given_transition_is_that_of_the_classes_behind_the_labels():
    matrix = np.array([[1.0, 0.0], [0.5, 0.5]])
    labels = np.array([0] * 75 + [1] * 25)  # half of each class is true
    assert known_transition(matrix, labels).rate == pytest.approx(0.25)


def test_noise_is_found_and_most_labels_are_mended(noisy, fitted_noisy):
    _, y, given = noisy
    model = fitted_noisy
    assert 0.2 < review(model).noise.rate < 0.4
    noise = review(model).noise
    assert (noise.low <= noise.high).all()
    mended = model._predictor.views.labels.numpy()
    assert (mended == y).mean() > (given == y).mean() + 0.15
    assert model.report_.choice["label_noise"]["interval"][0] > 0.05


def test_probabilities_speak_of_true_labels(noisy, fitted_noisy):
    X, _, given = noisy
    plain = attn_knn(**{**CHEAP, "estimator": logistic()}).fit(X, given)
    fresh, truth = blobs(400, 3, spread=0.9)
    nll = [
        -np.log(m.predict_proba(fresh)[np.arange(400), truth]).mean() for m in (fitted_noisy, plain)
    ]
    assert nll[0] < 0.7 * nll[1]
    assert sums_to_one(fitted_noisy.predict_proba(fresh))


def test_clean_labels_are_left_as_they_are():
    X, y = blobs(240, 3, spread=0.7)
    plain = attn_knn(**CHEAP).fit(X, y)
    auto = attn_knn(label_noise="auto", **CHEAP).fit(X, y)
    assert same(plain.predict_proba(X), auto.predict_proba(X))
    assert "as they are" in auto.report_.choice["label_noise"]["decision"]
    assert review(auto).noise.rate < 0.05 and not hasattr(review(plain), "noise")


def test_a_refit_forgets_the_noise_of_the_fit_before(noisy):
    X, y, _ = noisy
    model = attn_knn(label_noise=0.3, **CHEAP).fit(X, y)
    model.set_params(label_noise=None).fit(X, y)
    assert not hasattr(review(model), "noise")


def test_a_rows_own_label_leaves_its_own_prediction_unmoved(fitted_noisy):
    model = fitted_noisy
    before = model.predict_proba(None)
    for i in (0, 7, 44, 89):
        label = model.memory_.labels[i].item()
        for other in {0, 1, 2} - {label}:
            model.relabel([i], [other])
            # float32 sums round by which classes are met first: a few units in the last place
            np.testing.assert_allclose(model.predict_proba(None)[i], before[i], rtol=1e-5)
        model.relabel([i], [label])
    assert same(model.predict_proba(None), before)


def test_what_a_member_learns_of_labels_owes_nothing_to_its_own_fold(noisy):
    X, _, given = noisy
    encoder = TableEncoder()
    rows = encoder.fit(X)
    model = attn_knn(**{**CHEAP, "estimator": logistic()})
    settings = check_settings(model, len(X), 3, 0)
    train, held_out = make_folds(given, 3, 0)[0]
    predictions = []
    for labels in (given, np.where(np.isin(np.arange(len(X)), held_out), (given + 1) % 3, given)):
        problem = Problem(encoder, rows, labels, None, 3)
        with Progress(0) as progress:
            predictor = TrueLabelPredictor(problem, settings, Unseen(as_float(X)), progress, None)
            predictions.append(predictor.predict(train))
    assert same(predictions[0].log_proba, predictions[1].log_proba)
    assert same(predictions[0].matrix, predictions[1].matrix)


def test_an_added_row_with_a_wrong_label_is_seen_through(noisy):
    X, _, given = noisy
    model = attn_knn(label_noise=0.3, **CHEAP).fit(X, given)
    sure = int(model.predict_proba(X).max(1).argmax())
    right = model.predict(X[[sure]])[0]
    (added,) = model.add(X[[sure]], [(right + 1) % 3]).tolist()
    at = int(model.memory_.positions([added])[0])
    assert int(model._predictor.views.labels[at]) == right
    assert model.memory_.labels[at] == (right + 1) % 3
    (fresh,) = model.add(X[[0]] + 30, [9]).tolist()
    at = int(model.memory_.positions([fresh])[0])
    assert int(model._predictor.views.labels[at]) == 3
    assert sums_to_one(model.predict_proba(X))


def test_rows_held_out_once_and_views_are_seen_through_too(noisy):
    X, y, given = noisy
    settings = {**CHEAP, "train": {"epochs": 3}, "cv": 0.25}
    model = attn_knn(label_noise=0.3, **settings)
    model.fit(X, given, views=[X + 0.01])
    mended = model._predictor.views.labels.numpy()
    kept = model.memory_.ids.numpy()
    assert (mended == y[kept]).mean() > (given == y)[kept].mean() + 0.15
    assert sums_to_one(model.predict_proba(X, views=[X]))
    issues = review(model).issues()
    assert set(issues["id"]) == set(kept.tolist())


def test_networks_of_images_start_from_posterior_labels_and_correct_them():
    given = np.array([0, 2, 1])
    matrix = np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.0, 0.3, 0.7]])
    rows = TrainingRows(torch.zeros(1, 3, 3), np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    matrices = torch.from_numpy(matrix)[None]
    model = NoisyLabels(transition=known_transition(matrix, given), matrices=matrices, rows=rows)
    expected = [[0.8, 0.1, 0.0], [0.0, 0.3, 0.7], [0.2, 0.6, 0.3]]
    assert model.likelihood(given).tolist() == expected
    assert model.target(given, None)[0] is rows.proba
    assert AS_GIVEN.likelihood(given) is None


def test_an_image_network_does_not_take_the_wrong_labels_it_learned_for_right(tmp_path):
    images, y = patches(300, side=16, channels=3)
    truth = np.unique(y, return_inverse=True)[1]
    given = wrong_labels(y, 0.25)
    # A network of all rows learns the wrong labels too; half of the epochs are too few on some
    # processors, whose sums round otherwise.
    train = {"epochs": 28, "batch_size": 32}
    changes = {"embedder": "fast-cnn", "train": train, "label_noise": "auto"}
    model = attn_knn(**QUICK | changes, checkpoint_dir=tmp_path).fit(images, given)
    assert 0.15 < review(model).noise.rate < 0.35
    kept = model.memory_.ids.numpy()
    assert (model._predictor.views.labels.numpy() == truth[kept]).mean() > 0.82  # given: .75
    again = attn_knn(**QUICK | changes, checkpoint_dir=tmp_path).fit(images, given)
    assert same(again.predict_proba(images), model.predict_proba(images))
    trained = {path.parent for path in tmp_path.rglob("*.safetensors")}
    attn_knn(**QUICK | changes, checkpoint_dir=tmp_path, tta="shift").fit(images, given)
    assert {path.parent for path in tmp_path.rglob("*.safetensors")} == trained


@pytest.mark.parametrize(
    ("kind", "options", "widths", "epochs"),
    [("fast-cnn", {"widths": [8, 6, 5]}, [4, 3, 3], 6), ("resnet-small", {"dim": 16}, None, 3)],
)
def test_of_many_images_smaller_networks_look_for_wrong_labels(
    monkeypatch, kind, options, widths, epochs
):
    images, y = patches(120, side=16, channels=3)
    trained = []

    def spy(kind, train, problem, settings, *rest):
        trained.append((settings.embedder_options, train["epochs"]))
        return fit_apart(kind, train, problem, settings, *rest)

    monkeypatch.setattr(image_networks, "_FEW", 50)
    monkeypatch.setattr(image_networks, "fit_apart", spy)
    train = {"epochs": 6, "batch_size": 32}
    changes = {"embedder": kind, "embedder_options": options, "train": train}
    given = wrong_labels(y, 0.2)
    model = attn_knn(**QUICK | changes, label_noise=0.2).fit(images, given)
    expected = options if widths is None else {"widths": widths}
    assert trained == [(expected, epochs)] * 2
    whole = [record for record in model.report_.history if record["stage"] == f"embedder {kind}"]
    assert len(whole) == 6  # the classifier's own network keeps all epochs


def test_explanations_show_the_label_given_and_the_label_believed(noisy, fitted_noisy):
    X, _, given = noisy
    (why,) = fitted_noisy.explain(X[:1], n_neighbors=None)
    shown = {neighbor.id: neighbor for neighbor in why.neighbors}
    believed = fitted_noisy._predictor.views.labels
    assert all(n.label == given[i] for i, n in shown.items())
    assert all(n.posterior_label == believed[i] for i, n in shown.items())
    assert any(n.label != n.posterior_label for n in shown.values())


@pytest.mark.parametrize(
    ("rare", "flipped", "noise"), [(6, 0.25, "auto"), (6, 0.3, 0.3), (2, 0, 0.2)]
)
def test_a_class_too_rare_for_every_fold_stops_nothing(rare, flipped, noise):
    y = np.repeat([0, 1], [300 - rare, rare])
    given = wrong_labels(y, flipped) if flipped else y
    X = np.random.default_rng(0).normal(size=(300, 4))
    model = attn_knn(label_noise=noise, **{**CHEAP, "estimator": logistic()}).fit(X, given)
    assert sums_to_one(model.predict_proba(X))


def test_weights_count(noisy):
    X, y, given = noisy
    weight = np.where(given == y, 1.0, 1e-6)
    model = attn_knn(label_noise="auto", **CHEAP).fit(X, given, weight)
    assert review(model).noise.rate < 0.15


def test_another_noise_gives_another_checkpoint_folder(noisy, tmp_path):
    X, _, given = noisy
    model = attn_knn(checkpoint_dir=tmp_path, **CHEAP)
    settings = check_settings(model, len(X), 3, 0)
    fitters = (LabelFitter(), NoisyLabelFitter("auto"), NoisyLabelFitter(even(0.3)))
    several = [settings.model_copy(update={"label_fitter": fitter}) for fitter in fitters]
    folders = {check_checkpoint(model, one, [X], given, None).checkpoint for one in several}
    assert len(folders) == 3
    folders = set()
    bases = [{"estimator": "auto"}, {"estimator": logistic()}]
    for other in ({}, {"n_neighbors": 5}, {"metric": "cosine"}, *bases):
        model = attn_knn(checkpoint_dir=tmp_path, **{**CHEAP, **other})
        settings = check_settings(model, len(X), 3, 0)
        settings = settings.model_copy(update={"label_fitter": NoisyLabelFitter("auto")})
        own = [check_checkpoint(model, settings, [X], given, None).checkpoint for _ in range(2)]
        assert own[0] == own[1]
        folders.add(own[0])
    assert len(folders) == 5
