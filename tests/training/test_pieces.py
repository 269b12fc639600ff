"""Settings, rows, schedule, batches and MixUp, each by itself."""

import math

import pytest
import torch

from nearwise.nn import vote_nll
from nearwise.training import TrainConfig, TrainingRows, predict_neighbors
from nearwise.training.augment import Mix, draw_mix, mix_ids, mix_labels
from nearwise.training.rows import epoch_batches
from nearwise.training.schedule import parameter_groups
from nearwise.training.steps import fit_start_scale
from tests.training.cases import blobs, small_network


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decy": 0.1}, "Did you mean 'weight_decay'"),
        ({"zzz": 1}, "Known settings: epochs"),
        ({"knn_weight": 0}, "nothing to train"),
        ({"contrastive_weight": 0.5}, "Unknown training setting 'contrastive_weight'"),
        ({"momentum": 0.8}, "'momentum'. It comes with the optimizer"),
        ({"lr": 0}, "greater than 0"),
        ({"label_smoothing": 1.0}, "less than 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_rows_refuse_lengths_that_differ_and_values_that_are_not_finite():
    with pytest.raises(ValueError, match="labels has 2 rows but x_num has 3"):
        TrainingRows(torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="x_num holds NaN"):
        TrainingRows(torch.tensor([[float("nan")]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="must have shape"):
        TrainingRows(torch.zeros(3), torch.zeros(3, dtype=torch.int64))


def test_taken_rows_keep_their_ids():
    rows = TrainingRows(torch.zeros(3, 1), torch.tensor([0, 1, 2])).take(torch.tensor([2, 0]))
    assert rows.row_ids.tolist() == [2, 0]
    assert rows.labels.tolist() == [2, 0]


def test_biases_scale_and_frequencies_do_not_decay():
    network = small_network(categories=True, head=True)
    decayed, free = (group["params"] for group in parameter_groups(network, 0.1))
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert {names[id(p)] for p in decayed} == {
        "embedder.numeric.linear.weight",
        "embedder.categorical.table.weight",
        "embedder.trunk.1.weight",
        "head.weight",
    }
    assert len(decayed) + len(free) == len(list(network.parameters()))


@pytest.mark.parametrize("n_candidates", [None, 7, 40, 1000])
def test_batches_cover_the_rows_once_and_candidates_never_repeat(n_candidates):
    batches = list(epoch_batches(50, 16, n_candidates, generator()))
    assert torch.cat([batch.queries for batch in batches]).sort().values.tolist() == list(range(50))
    for queries, extra in batches:
        assert 12 <= len(queries) <= 16
        both = torch.cat([queries, extra])
        assert len(both.unique()) == len(both)
        assert len(both) == max(len(queries), min(50, n_candidates or 50))


def test_mix_shares_are_the_larger_part_and_repeat_with_the_generator():
    first, second = draw_mix(64, 0.4, generator()), draw_mix(64, 0.4, generator())
    assert torch.equal(first.partner, second.partner) and torch.equal(first.share, second.share)
    assert ((first.share >= 0.5) & (first.share <= 1)).all()
    assert first.partner.sort().values.tolist() == list(range(64))
    with pytest.raises(ValueError, match="alpha must be positive"):
        draw_mix(4, 0.0, generator())


def test_mixed_labels_and_ids_name_both_sources():
    mix = Mix(torch.tensor([1, 0]), torch.tensor([[0.75], [0.6]]))
    mixed = mix_labels(torch.tensor([0, 2]), mix, 3)
    torch.testing.assert_close(mixed, torch.tensor([[0.75, 0, 0.25], [0.4, 0, 0.6]]))
    assert mix_ids(torch.tensor([7, 9]), mix).tolist() == [[7, 9], [9, 7]]


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
def test_start_scale_is_the_best_of_a_grid_and_dropout_does_not_blur_it(similarity):
    scales = []
    for dropout in (0.0, 0.5):
        network = small_network(dropout=dropout, normalize=similarity == "cosine")
        network.similarity = similarity
        rows = blobs(200)
        nll = fit_start_scale(network, rows, generator())
        before = vote_nll(predict_neighbors(network, rows, rows), rows.labels)
        assert nll == pytest.approx(before.item(), abs=1e-5)
        for factor in (0.5, 2.0):
            with torch.no_grad():
                network.log_scale.add_(math.log(factor))
            other = vote_nll(predict_neighbors(network, rows, rows), rows.labels)
            assert other >= before - 1e-6
            with torch.no_grad():
                network.log_scale.sub_(math.log(factor))
        scales.append(network.scale.item())
    assert scales[0] == pytest.approx(scales[1])
