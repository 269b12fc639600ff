"""The loop: it learns, repeats, stops, keeps the best, and never looks at its own label."""

import math
import warnings

import pytest
import torch

from nearwise.nn import Embedder, NeighborNetwork, TableEmbedder
from nearwise.nn.losses import VOTE_FLOOR
from nearwise.training import (
    TrainConfig,
    TrainingRows,
    encode,
    predict_head,
    predict_neighbors,
    train_embedder,
)
from nearwise.training.embedder import EmbedderObjective
from tests.training.cases import (
    N_CLASSES,
    blobs,
    quick,
    same_weights,
    small_network,
    timeless,
    weights_of,
)

PIECES = {
    "plain": {},
    "few candidates": {"n_candidates": 40},
    "cached keys": {"cache_momentum": 0.5},
    "cross-entropy": {"ce_weight": 0.5},
    "head alone": {"ce_weight": 1.0, "knn_weight": 0.0},
    "smoothing": {"label_smoothing": 0.1},
    "mixup": {"mixup_alpha": 0.4, "mixup_probability": 1.0},
    "lookahead": {"optimizer": "lookahead", "warmup_epochs": 0},
    "everything": {
        "n_candidates": 40,
        "ce_weight": 0.5,
        "label_smoothing": 0.1,
        "mixup_alpha": 0.4,
    },
}


@pytest.mark.usefixtures("plain_start")
@pytest.mark.parametrize("piece", PIECES)
def test_every_piece_learns_and_repeats_with_its_seed(piece):
    settings, categories = PIECES[piece], piece in ("plain", "mixup", "everything")
    results = []
    for _ in range(2):
        network = small_network(categories, head=True, dropout=0.1)
        train, held_out = blobs(categories=categories), blobs(40, 1, 1000, categories)
        before = torch.get_rng_state()
        result = train_embedder(network, train, held_out, quick(**settings), seed=3)
        assert torch.equal(torch.get_rng_state(), before)
        results.append((weights_of(network), timeless(result.history)))
        torch.rand(1)  # what happens outside must not matter
    assert same_weights(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    history = results[0][1]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert history[-1]["held_out_nll"] < 1.0986  # the NLL of three equal classes


def test_another_seed_gives_another_run():
    losses = []
    for seed in (0, 1):
        result = train_embedder(small_network(), blobs(), None, quick(epochs=1), seed=seed)
        losses.append(result.history[0]["train_loss"])
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "settings",
    [{}, {"cache_momentum": 0.0}, {"mixup_alpha": 0.4, "mixup_probability": 1.0}],
    ids=["plain", "cached", "mixed"],
)
def test_a_row_that_is_alone_in_its_class_never_finds_itself(settings):
    """With a class for each row, every vote for the right one would be a row's own."""
    rows = TrainingRows(torch.randn(64, 2), torch.arange(64))
    network = NeighborNetwork(Embedder(2, False, {}), 64)
    result = train_embedder(network, rows, None, quick(epochs=2, **settings), seed=0)
    nothing = -math.log(VOTE_FLOOR)
    assert [record["parts"]["knn"] for record in result.history] == pytest.approx([nothing] * 2)


def test_own_label_does_not_move_the_own_leave_one_out_prediction():
    network, rows = small_network(), blobs()
    labels = rows.labels.clone()
    labels[5] = (labels[5] + 1) % N_CLASSES
    changed = TrainingRows(rows.x_num, labels, ids=rows.ids)
    before = predict_neighbors(network, rows, rows)
    after = predict_neighbors(network, changed, changed)
    assert torch.equal(before[5], after[5])
    assert not torch.equal(before, after)


@pytest.mark.usefixtures("plain_start")
def test_best_weights_are_restored_and_patience_ends_the_run():
    network, train, held_out = small_network(), blobs(noise=1.5), blobs(60, 1, 1000, noise=1.5)
    result = train_embedder(network, train, held_out, quick(epochs=60, lr=0.1, patience=3), seed=0)
    nlls = [record["held_out_nll"] for record in result.history]
    assert result.best_value == min(nlls)
    assert result.best_epoch == nlls.index(min(nlls)) + 1
    assert len(nlls) == result.best_epoch + 3 < 60
    proba = predict_neighbors(network, held_out, train)
    again = -proba[torch.arange(60), held_out.labels].log().mean().item()
    assert again == pytest.approx(result.best_value, abs=1e-5)
    assert not network.training


def test_start_is_kept_where_training_only_harms():
    network, train, held_out = small_network(), blobs(noise=1.5), blobs(60, 1, 1000, noise=1.5)
    result = train_embedder(network, train, held_out, quick(lr=0.5, patience=2), seed=0)
    assert result.best_epoch == 0
    assert len(result.history) == 2
    proba = predict_neighbors(network, held_out, train)
    nll = -proba[torch.arange(60), held_out.labels].log().mean().item()
    assert nll == pytest.approx(result.best_value, abs=1e-5)


def test_without_held_out_rows_the_last_epoch_is_kept():
    result = train_embedder(small_network(), blobs(), None, quick(), seed=0)
    assert (result.best_epoch, result.best_value, result.interrupted) == (4, None, False)
    assert [record["held_out_nll"] for record in result.history] == [None] * 4


def test_held_out_rows_are_scored_against_some_of_very_many(monkeypatch):
    monkeypatch.setattr("nearwise.training.embedder._MOST_SCORED_AGAINST", 50)
    objective = EmbedderObjective(small_network(), blobs(), blobs(40, 1, 1000), quick(), seed=0)
    other = EmbedderObjective(small_network(), blobs(), blobs(40, 1, 1000), quick(), seed=1)
    ids = objective.scored_against.row_ids
    assert len(ids.unique()) == 50 and not torch.equal(ids, other.scored_against.row_ids)


@pytest.mark.parametrize(("ce_weight", "judged"), [(0.0, "neighbors"), (0.5, "head")])
def test_the_head_is_judged_where_it_is_trained(ce_weight, judged, monkeypatch):
    calls = []
    for kind in ("neighbors", "head"):
        monkeypatch.setattr(
            f"nearwise.training.embedder.predict_{kind}",
            lambda *args, k=kind, **kw: calls.append(k) or torch.full((40, N_CLASSES), 0.5),
        )
    network = small_network(head=True)
    train_embedder(network, blobs(), blobs(40, 1, 1000), quick(ce_weight=ce_weight), seed=0)
    assert set(calls) == {judged}


def test_silent_unless_interrupted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_embedder(small_network(), blobs(), blobs(40, 1, 1000), quick(), seed=0)


def test_soft_labels_equal_to_hard_ones_train_the_same():
    rows = blobs()
    soft = TrainingRows(
        rows.x_num, torch.nn.functional.one_hot(rows.labels, N_CLASSES).float(), ids=rows.ids
    )
    losses = [
        train_embedder(small_network(), given, None, quick(), seed=0).history[-1]["train_loss"]
        for given in (rows, soft)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_row_with_weight_zero_neither_votes_nor_counts():
    rows = blobs()
    weight = torch.ones(len(rows))
    weight[:30] = 0.0
    wrong = rows.labels.clone()
    wrong[:30] = (wrong[:30] + 1) % N_CLASSES
    histories = [
        train_embedder(
            small_network(),
            TrainingRows(rows.x_num, labels, ids=rows.ids, sample_weight=weight),
            None,
            quick(),
            seed=0,
        ).history
        for labels in (rows.labels, wrong)
    ]
    assert timeless(histories[0]) == timeless(histories[1])


def test_second_view_is_trained_on():
    rows = blobs()
    both = TrainingRows(rows.x_num, rows.labels, ids=rows.ids, second_x_num=rows.x_num + 0.5)
    network = small_network()
    result = train_embedder(network, both, None, quick(), seed=0)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_chunks_do_not_change_keys():
    network, rows = small_network(categories=True), blobs(categories=True)
    torch.testing.assert_close(encode(network, rows, chunk_size=7), encode(network, rows))


def test_head_predictions_are_log_probabilities():
    network, rows = small_network(head=True), blobs()
    log_proba = predict_head(network, rows)
    torch.testing.assert_close(log_proba.exp().sum(dim=1), torch.ones(len(rows)))
    with pytest.raises(ValueError, match="head=True"):
        predict_head(small_network(), rows)


@pytest.mark.parametrize(
    ("rows", "held_out", "settings", "message"),
    [
        (blobs(1), None, {}, "at least 2 rows"),
        (blobs(), blobs(10), {}, "held_out ids are also training ids"),
        (blobs(), blobs(0, 1, 1000), {}, "held_out has no rows"),
        (blobs(), None, {"ce_weight": 1.0}, "head=True"),
    ],
)
def test_rows_and_settings_that_do_not_fit_are_named(rows, held_out, settings, message):
    with pytest.raises(ValueError, match=message):
        train_embedder(small_network(), rows, held_out, quick(**settings), seed=0)


def test_labels_and_ids_that_do_not_fit_are_named():
    rows = blobs()
    for labels in (rows.labels + 1, rows.labels - 1, rows.labels.float(), torch.zeros(120, 2)):
        with pytest.raises(ValueError, match="labels must be class positions from 0 to 2"):
            wrong = TrainingRows(rows.x_num, labels)
            train_embedder(small_network(), wrong, None, quick(), seed=0)
    with pytest.raises(ValueError, match="All training rows have one id"):
        repeated = TrainingRows(rows.x_num, rows.labels, ids=torch.zeros(120, dtype=torch.int64))
        train_embedder(small_network(), repeated, None, quick(), seed=0)


def test_loss_that_is_no_longer_finite_stops_with_advice():
    rows = blobs()
    huge = TrainingRows(rows.x_num * 1e30, rows.labels, ids=rows.ids)
    network = NeighborNetwork(TableEmbedder(2, (), None, dim=2), N_CLASSES)
    with pytest.raises(ValueError, match="no longer finite in step 1 of 4 of epoch 1"):
        train_embedder(network, huge, None, quick(), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_core_reaches_its_numbers_on_digits(seed):
    """One member, no temperature: at least .975 accuracy and at most .11 NLL, any seed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    fit, test = train_test_split(range(len(y)), test_size=0.2, stratify=y, random_state=seed)
    fit, stop = train_test_split(fit, test_size=0.2, stratify=y[fit], random_state=seed)
    x_num, labels = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    parts = [
        TrainingRows(x_num[part], labels[part], ids=torch.tensor(part))
        for part in (fit, stop, test)
    ]
    network = NeighborNetwork(TableEmbedder(64, (), None, dim=64), 10)
    train_embedder(network, parts[0], parts[1], TrainConfig(epochs=60, lr=1e-2), seed=seed)
    proba = predict_neighbors(network, parts[2], parts[0])
    right = proba[torch.arange(len(test)), parts[2].labels]
    assert (proba.argmax(dim=1) == parts[2].labels).float().mean() >= 0.975
    assert -right.clamp_min(1e-7).log().mean() <= 0.11
