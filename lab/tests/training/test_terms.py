"""The study's terms and draws in the one loop: each learns, repeats and resumes."""

import pytest
import torch
from nearwise_lab.training.losses import weight_entropy
from nearwise_lab.training.terms import TermsConfig, TermsObjective

from nearwise.training import TrainingRows, objective, train_embedder
from nearwise.training.rows import Batch
from tests.reference.losses import leave_self_out, neighbor_scores
from tests.training.cases import blobs, same_weights, small_network, timeless, weights_of

TERMS = {
    "contrastive": {"contrastive_weight": 0.5},
    "margin": {"contrastive_weight": 0.5, "contrastive_kind": "margin"},
    "entropy": {"entropy_weight": 0.01},
    "hard rows": {"hard_negative_weight": 2.0},
    "everything": {
        "n_candidates": 40,
        "ce_weight": 0.5,
        "contrastive_weight": 0.5,
        "entropy_weight": 0.01,
        "mixup_alpha": 0.4,
        "hard_negative_weight": 2.0,
    },
}


def trained(rows=None, settings=None, **options):
    config = {"epochs": 8, "batch_size": 32, "lr": 1e-2, "patience": None} | (settings or {})
    network = small_network(head=True, dropout=0.1)
    result = train_embedder(
        network,
        blobs() if rows is None else rows,
        blobs(40, 1, 1000),
        TermsConfig(**config),
        seed=3,
        objective=TermsObjective,
        **options,
    )
    return weights_of(network), timeless(result.history)


def made(**settings):
    network = small_network(head=True)
    return TermsObjective(network, blobs(32), None, TermsConfig(**settings))


@pytest.mark.filterwarnings("ignore:Training was interrupted")
@pytest.mark.parametrize("term", TERMS)
def test_every_term_learns_repeats_and_resumes(term, tmp_path, monkeypatch):
    monkeypatch.setattr(objective, "_CHECKPOINT_SECONDS", 0.0)

    def interrupt(record):
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    weights, history = trained(settings=TERMS[term])
    trained(settings=TERMS[term], checkpoint=tmp_path / "run", progress=interrupt)
    again, history_again = trained(settings=TERMS[term], checkpoint=tmp_path / "run")
    assert same_weights(weights, again) and history == history_again
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert history[-1]["held_out_nll"] < 1.0986  # the NLL of three equal classes
    assert not same_weights(weights, trained()[0])


def test_the_loss_is_the_sum_of_the_terms_with_their_weights():
    weights = {"ce_weight": 0.5, "contrastive_weight": 0.3, "entropy_weight": 0.1}
    batch = Batch(torch.arange(16), torch.arange(16, 32))
    parts = made(**weights).gradients(batch, torch.Generator(), 0, torch.Tensor.backward)
    expected = parts["knn"] + sum(parts[name[:-7]] * value for name, value in weights.items())
    torch.testing.assert_close(parts["loss"], expected)


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
def test_entropy_is_that_of_the_weights_without_the_own_row(similarity):
    given = made(entropy_weight=0.1)
    given.network.similarity = similarity
    batch = Batch(torch.arange(16), torch.arange(16, 32))
    parts = given.gradients(batch, torch.Generator(), 0, torch.Tensor.backward)
    keys, ids = given.network.embedder(given.rows.x_num), given.rows.row_ids
    scores = leave_self_out(neighbor_scores(given.network, keys[:16], keys), ids[:16], ids)
    torch.testing.assert_close(parts["entropy"], -weight_entropy(scores).detach())


def test_hard_rows_are_drawn_from_the_second_epoch_on():
    given = made(hard_negative_weight=50.0, batch_size=32)
    given.rows = blobs(32, noise=2.0)
    first = torch.cat([batch.queries for batch in given.draw(1, torch.Generator())])
    assert len(first.unique()) == 32 and given.row_weights is None
    second = torch.cat([batch.queries for batch in given.draw(2, torch.Generator())])
    assert (given.row_weights == 50).sum() == 10
    assert (given.row_weights[second] == 50).float().mean() > 0.5


def test_mixed_keys_alone_give_the_loss_that_they_give_beside_unmixed_ones():
    losses = []
    for weight in (0.0, 1.0):  # 1: the unmixed keys are wanted too
        given = made(
            knn_weight=0.0,
            ce_weight=1.0,
            mixup_alpha=0.4,
            mixup_probability=1.0,
            contrastive_weight=weight,
        )
        generator = torch.Generator().manual_seed(3)
        batch = Batch(torch.arange(32), torch.arange(0))
        parts = given.gradients(batch, generator, 0, lambda loss: None)
        assert ("contrastive" in parts) == bool(weight)
        losses.append(parts["ce"])
    torch.testing.assert_close(*losses)


def test_a_second_view_joins_as_more_positives():
    rows = blobs()
    both = TrainingRows(rows.x_num, rows.labels, ids=rows.ids, second_x_num=rows.x_num + 0.5)
    history = trained(both, {"contrastive_weight": 0.5})[1]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
