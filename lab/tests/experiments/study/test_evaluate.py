"""The study's evaluation, the findings and the efficiency experiment."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from nearwise_lab.experiments.network import fit_temperature
from nearwise_lab.experiments.study import efficiency, findings, fit_hyperbola, replay
from nearwise_lab.experiments.study.evaluate import NEIGHBOR_METHODS, evaluate_run, study_nll, sweep
from nearwise_lab.experiments.study.inputs import study_views
from nearwise_lab.experiments.study.model import Memory
from nearwise_lab.experiments.study.presets import change_preset


@pytest.fixture(scope="module")
def predictions(trained):
    return {p.method: p for p in evaluate_run(trained, NEIGHBOR_METHODS)}


def test_every_method_gives_probabilities(predictions):
    assert tuple(predictions) == NEIGHBOR_METHODS
    for prediction in predictions.values():
        assert (prediction.proba >= 0).all()
        np.testing.assert_allclose(prediction.proba.sum(axis=1), 1, atol=1e-12)


def test_one_search_serves_all_methods_and_one_more_each_view(trained, monkeypatch):
    searches, real = [], replay.look_up
    monkeypatch.setattr(replay, "look_up", lambda *a: searches.append(a[3]) or real(*a))
    list(evaluate_run(trained, NEIGHBOR_METHODS))
    assert searches == [30, *[trained.preset.n_neighbors] * 4]


def test_uniform_is_the_share_of_the_nearest_labels(trained, predictions):
    keys = trained.model.embedder(trained.inputs.x_test)
    distances = torch.cdist(keys, trained.memory.keys)
    nearest = distances.argsort(dim=1, stable=True)[:, : trained.preset.n_neighbors]
    votes = torch.nn.functional.one_hot(trained.memory.labels[nearest], 10).float().mean(dim=1)
    np.testing.assert_allclose(predictions["uniform"].proba, votes.numpy(), atol=1e-5)


def test_other_memory_labels_change_the_vote_and_nothing_else(trained, predictions):
    shifted = Memory(trained.memory.keys, (trained.memory.labels + 1) % 10)
    changed = {p.method: p for p in evaluate_run(replace(trained, memory=shifted), ["uniform"])}
    np.testing.assert_allclose(
        changed["uniform"].proba, np.roll(predictions["uniform"].proba, 1, axis=1), atol=1e-7
    )


def test_the_views_are_the_mirror_image_and_moved_crops(trained):
    images = trained.inputs.x_test[:20]
    views = study_views(images, 0, "mirror-and-crops")
    assert len(views) == 4
    assert torch.equal(views[0], images.flip(3))
    for view in views[1:]:
        assert view.shape == images.shape
        # a crop moved by at most one pixel keeps the six inner rows and columns somewhere
        assert (view.float().mean(dim=(1, 2, 3)) <= images.float().mean(dim=(1, 2, 3))).all()
    assert torch.equal(study_views(images, 0, "mirror-and-crops")[2], views[2])
    assert not torch.equal(study_views(images, 1, "mirror-and-crops")[2], views[2])


def test_the_notebooks_views_are_four_crops_of_which_some_are_mirrored(trained):
    images = trained.inputs.x_test[:50]
    views = study_views(images, 0, "random")
    assert len(views) == 4

    def inside(view, whole):
        """Rows of which the inner columns and rows are somewhere in the image, moved by one."""
        places = [whole[:, :, 1 + y : 7 + y, 1 + x : 7 + x] for y in (-1, 0, 1) for x in (-1, 0, 1)]
        return torch.stack([(view[:, :, 1:7, 1:7] == p).flatten(1).all(1) for p in places]).any(0)

    for view in views:
        plain, mirrored = inside(view, images), inside(view, images.flip(3))
        assert (plain | mirrored).all()
        assert 5 < int(plain.sum()) < 45


def test_the_evaluation_takes_the_views_of_the_preset(trained, predictions):
    run = replace(trained, preset=change_preset(trained.preset, {"views": "random"}))
    (random,) = evaluate_run(run, ["attention+tta"])
    assert not np.allclose(random.proba, predictions["attention+tta"].proba)


def test_the_sweep_gives_three_rows_for_each_k(trained):
    rows = list(sweep(trained, (1, 5, 10, 100_000)))
    assert [(p.k, p.method) for p in rows] == [
        (k, m) for k in (1, 5, 10) for m in ("uniform", "distance", "attention")
    ]
    by_k = {(p.k, p.method): p for p in rows}
    np.testing.assert_allclose(by_k[1, "uniform"].proba, by_k[1, "attention"].proba, atol=1e-6)
    (whole,), eight = evaluate_run(trained, ["uniform"]), next(sweep(trained, (8,)))
    assert whole.k == eight.k == 8
    np.testing.assert_array_equal(whole.proba, eight.proba)


def test_the_studys_nll_is_clipped_at_1e_9():
    proba = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert study_nll(np.array([1, 0]), proba) == pytest.approx((-np.log(1e-9) - np.log(0.5)) / 2)


def test_a_plus_b_over_k_is_recovered():
    sizes = [1, 3, 5, 10, 20, 50]
    fit = fit_hyperbola(sizes, [0.05 + 0.3 / k for k in sizes])
    assert (fit.a, fit.b, fit.r2) == pytest.approx((0.05, 0.3, 1.0))
    flat = fit_hyperbola([1, 2, 4], [0.2, 0.2, 0.2])
    assert (flat.a, flat.b, flat.r2) == pytest.approx((0.2, 0.0, 1.0))
    with pytest.raises(ValueError, match="two or more different sizes"):
        fit_hyperbola([5, 5], [0.1, 0.1])


def test_the_error_at_each_k_is_that_of_the_majority():
    labels = torch.tensor([[0, 1, 1], [1, 1, 0]])
    found = findings.error_curve(labels, torch.tensor([0, 0]), n_memory=100, n_classes=2)
    assert (found["k"], found["error"]) == ([1, 2, 3], [0.5, 0.5, 1.0])
    assert (found["best_k"], found["sqrt_n"]) == (1, 10.0)


def test_theory_of_a_run(trained, monkeypatch):
    curve = findings.error_against_k(trained)
    assert len(curve["k"]) == len(curve["error"]) > 5
    assert {"a", "b", "r2", "best_k", "sqrt_n"} <= set(curve)
    finding = findings.sphere(trained)
    assert finding["norms"]["mean"] == pytest.approx(1, abs=1e-5)
    assert finding["same_order"] > 0.95
    monkeypatch.setattr(findings, "_MAP_ROWS", 50)
    drawn = findings.memory_map(trained)
    assert len(drawn["memory"]) == len(drawn["memory_label"]) == 50
    assert 0 < drawn["explained"] <= 1


def test_the_gallery_shows_weighed_neighbors(trained, predictions):
    proba, shown = predictions["attention"].proba, findings.Explained(trained)
    gallery = findings.image_gallery(shown, trained.inputs, proba)
    assert gallery["image_shape"] == (8, 8)
    for row in gallery["rows"]:
        assert len(row["row"]) == 64
        weights = [neighbor["weight"] for neighbor in row["neighbors"]]
        assert weights == sorted(weights, reverse=True)
        assert sum(weights) <= 1 + 1e-5


@pytest.mark.parametrize("name", ["exact", "L2", "IP", "HNSW", "IVF"])
def test_flat_indexes_find_all_and_approximate_ones_nearly_all_in_groups(name):
    if name not in efficiency.index_names():
        pytest.skip('needs the extra "faiss"')
    keys, queries = efficiency.random_keys(efficiency.EfficiencySize(500, 16, 5, 20), seed=0)
    if name in ("HNSW", "IVF"):  # cells and graphs need keys that lie in groups, as those of data
        groups = torch.nn.functional.normalize(torch.eye(16), dim=1).repeat(40, 1)
        keys, queries = groups[:500] + 0.1 * keys, groups[:20] + 0.1 * queries
    finding = efficiency.measure_index(name, keys, queries, 5)
    assert finding["recall"] >= (0.9 if name in ("HNSW", "IVF") else 1)
    assert finding["build_seconds"] >= 0
    assert finding["search_ms_per_query"] > 0


def test_recall_counts_what_was_found_in_any_order():
    found, true = torch.tensor([[2, 1], [5, 6]]), torch.tensor([[1, 2], [6, 7]])
    assert efficiency.recall(found, true) == 0.75


def test_a_temperature_stays_moderate_where_all_of_few_rows_are_right():
    proba = np.full((100, 2), 0.1)
    proba[:, 0] = 0.9
    labels = np.zeros(100, dtype=int)
    assert fit_temperature(proba, labels) < 0.1
    assert 0.4 < fit_temperature(proba, labels, ridge=2 / 100) < 1
    half = np.arange(100) % 2  # where the rows have something to say, they say it
    assert fit_temperature(proba, half, ridge=2 / 100) > 3
