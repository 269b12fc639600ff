"""The replayed training: its leak, its recorded losses, and going on after a kill."""

import numpy as np
import pytest
import torch
from nearwise_lab.experiments.study import train_replay
from nearwise_lab.experiments.study.findings import collapse, leak
from nearwise_lab.experiments.study.inputs import make_inputs
from nearwise_lab.experiments.study.model import (
    PixelMLP,
    TabularMLP,
    look_up,
    make_embedder,
    make_model,
    training_neighbors,
)
from nearwise_lab.experiments.study.presets import change_preset
from nearwise_lab.experiments.study.replay import ReplayObjective, run_digest
from nearwise_lab.training.losses import selective_risk, supervised_contrastive
from torch import nn

NUMBERS = torch.randn(6, 3)


class Killed(Exception):
    """Stands for a kill between two epochs."""


def kill_after(epoch):
    def tell(record):
        if record["epoch"] == epoch:
            raise Killed

    return tell


def objective_of(trained, preset):
    """The study's loss of a trained model, with its neighbors found."""
    objective = ReplayObjective(trained.model, trained.inputs, preset)
    assert objective.batches(1, None, torch.Generator())
    return objective


def facts(run):
    """What must not depend on how a run came about."""
    history = [{k: v for k, v in r.items() if k != "seconds"} for r in run.history]
    return history, run.best_epoch


def test_the_loss_with_oneself_among_the_neighbors_is_far_lower_than_without(trained):
    finding = leak(trained)
    assert finding["knn_loss_with_self"] < 0.5 * finding["knn_loss_without_self"]
    assert finding["self_weight"] > finding["even_share"]


def test_the_collapse_sets_how_far_neighbors_agree_beside_how_often_they_are_right(trained):
    k, labels = trained.preset.n_neighbors, trained.memory.labels.tolist()
    found = look_up(trained.model, trained.inputs.x_test, trained.memory, k, "float32").indices
    agreed, right = [], []
    for near, truth in zip(found.tolist(), trained.inputs.y_test.tolist(), strict=True):
        votes = [sum(labels[j] == c for j in near) for c in range(10)]
        agreed.append(max(votes) / k)
        right.append(votes.index(max(votes)) == truth)
    remembered = training_neighbors(trained.memory.keys, k, leave_self_out=True).indices
    alike = [labels[j] == labels[i] for i, near in enumerate(remembered.tolist()) for j in near]
    expected = {
        "purity": np.mean(agreed), "accuracy": np.mean(right), "memory_purity": np.mean(alike),
        "excess": np.mean(agreed) - np.mean(right),
    }  # fmt: skip
    finding = collapse(trained)
    assert {name: finding[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_every_training_row_finds_itself_first_unless_it_is_left_out(trained):
    keys = trained.memory.keys
    rows = torch.arange(len(keys))
    as_there = training_neighbors(keys, 5, leave_self_out=False)
    mended = training_neighbors(keys, 5, leave_self_out=True)
    assert (as_there.distances[:, 0] == 0).all()
    assert ((as_there.indices == rows[:, None]).sum(dim=1) >= 1).float().mean() > 0.95
    assert not (mended.indices == rows[:, None]).any()


def test_every_part_of_the_loss_is_really_recorded(trained):
    for record in trained.history:
        parts = record["parts"]
        assert set(parts) == {"knn", "contrastive", "entropy"}
        weights = {name: getattr(trained.preset, f"{name}_weight") for name in parts}
        total = sum(weights[name] * part for name, part in parts.items())
        assert record["train_loss"] == pytest.approx(total, rel=1e-5)
        assert parts["contrastive"] != 0
        assert record["attention_entropy"] == pytest.approx(-parts["entropy"])
        assert record["knn_clean"] is not None


def test_the_best_epoch_by_accuracy_is_kept(trained):
    accuracies = [record["test_accuracy"] for record in trained.history]
    assert trained.best_epoch == 1 + int(np.argmax(accuracies))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v0.2", "v0.4", "v0.5"])
def test_a_killed_run_goes_on_to_the_same_result(name, digits, make_preset, tmp_path):
    preset = make_preset(name, epochs=4, refresh_every=3, warmup_epochs=1)
    inputs = make_inputs(digits, preset, 1)
    whole = train_replay(inputs, preset)
    with pytest.raises(Killed):
        train_replay(inputs, preset, checkpoint=tmp_path / "run", progress=kill_after(2))
    resumed = train_replay(inputs, preset, checkpoint=tmp_path / "run")
    again = train_replay(inputs, preset, checkpoint=tmp_path / "run", progress=kill_after(4))
    assert facts(resumed) == facts(whole) == facts(again)
    assert torch.equal(resumed.memory.keys, whole.memory.keys)
    assert torch.equal(again.memory.keys, whole.memory.keys)


def test_a_checkpoint_of_other_settings_is_refused(digits, make_preset, tmp_path):
    preset = make_preset(epochs=1)
    inputs = make_inputs(digits, preset, 0)
    train_replay(inputs, preset, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="belongs to another run"):
        train_replay(inputs, make_preset(epochs=1, lr=1e-4), checkpoint=tmp_path / "run")


def test_a_seed_repeats_and_another_differs(digits, make_preset):
    preset = make_preset(epochs=1)
    first, same, other = (
        train_replay(make_inputs(digits, preset, seed), preset) for seed in (0, 0, 1)
    )
    assert torch.equal(first.memory.keys, same.memory.keys)
    assert not torch.equal(first.memory.keys, other.memory.keys)
    assert first.inputs.digest == other.inputs.digest  # the split's own seed is 42


def test_a_compiled_replay_compiles_its_embedder_while_it_trains(digits, make_preset, monkeypatch):
    calls = []
    monkeypatch.setattr(TabularMLP, "compile", lambda module, **how: calls.append(module))
    plain, fast = make_preset(epochs=1), make_preset(epochs=1, compile=True)
    inputs = make_inputs(digits, plain, 0)
    train_replay(inputs, plain)
    assert not calls
    run = train_replay(inputs, fast)
    assert calls == [run.model.embedder]
    assert run_digest(inputs, fast) != run_digest(inputs, plain)


def test_the_projection_is_normalised_as_the_preset_says(digits, make_preset):
    inputs = make_inputs(digits, make_preset(), 0)
    for norm, expected in (("batch", nn.BatchNorm1d), ("layer", nn.LayerNorm)):
        preset = make_preset(backbone="resnet-small", projection_norm=norm)
        assert isinstance(make_embedder(preset, inputs).trunk.projection[1], expected)


def test_a_query_learns_how_many_neighbors_it_asks(digits, make_preset):
    preset = make_preset(learned_k=True, leave_self_out=True, mixup_alpha=0.0, epochs=1)
    inputs = make_inputs(digits, preset, 0)
    model = make_model(preset, inputs, 0)
    query, neighbors = torch.randn(5, 32), torch.randn(5, 20, 32)
    distances = (neighbors - query[:, None]).square().sum(2)
    with torch.no_grad():
        plain = model.attention(query, neighbors, distances)
        model.neighbors_asked.weight.zero_()
        model.neighbors_asked.bias.fill_(3.0)  # softplus of 3 is 3.05
        few = model.weigh(query, neighbors, distances)
        model.neighbors_asked.bias.fill_(1000.0)
        all_of_them = model.weigh(query, neighbors, distances)
    torch.testing.assert_close(few.sum(1), torch.ones(5))
    assert (few[:, 10:].sum(1) < 0.01 * few[:, :3].sum(1)).all()
    torch.testing.assert_close(all_of_them, plain)
    run = train_replay(inputs, preset)
    start = make_model(preset, inputs, 0).neighbors_asked
    assert not torch.equal(run.model.neighbors_asked.weight, start.weight)


def test_the_selective_loss_is_the_mean_risk_over_coverages(trained, make_preset):
    losses, sure = torch.rand(2, 30, generator=torch.Generator().manual_seed(0))
    surest = losses[sure.argsort(descending=True)]
    expected = sum(float(surest[:n].mean()) for n in range(1, 31)) / 30
    assert float(selective_risk(losses, sure)) == pytest.approx(expected, rel=1e-5)
    plain, found = {"mixup_alpha": 0.0, "label_smoothing": 0.0, "leave_self_out": True}, []
    for weight in (0.0, 2.0):
        objective = objective_of(trained, make_preset(**plain, selective_weight=weight))
        parts = objective.loss(torch.arange(64), torch.Generator(), 0)
        found.append({name: part.item() for name, part in parts.items()})
    added = found[1]["loss"] - found[0]["loss"]
    assert added == pytest.approx(2 * found[1]["selective"], rel=1e-4)


def test_the_first_versions_train_a_classifier_and_leave_attention_alone(digits, make_preset):
    preset = make_preset("v0.1", epochs=2)
    inputs = make_inputs(digits, preset, 0)
    run = train_replay(inputs, preset)
    assert set(run.history[0]["parts"]) == {"ce"}
    untrained = train_replay(inputs, make_preset("v0.1", epochs=1, lr=1e-12)).model.attention
    for trained, start in zip(
        run.model.attention.parameters(), untrained.parameters(), strict=True
    ):
        assert torch.allclose(trained, start, atol=1e-6)


def test_the_studys_margin_only_shifts_the_contrastive_term(trained):
    preset, rows, values = trained.preset, torch.arange(64), {}
    for kind in ("supervised", "margin", "pairs"):
        objective = objective_of(trained, change_preset(preset, {"contrastive_kind": kind}))
        values[kind] = objective.terms(rows, torch.Generator())[0]["contrastive"].item()
    assert values["margin"] == pytest.approx(values["supervised"] - preset.contrastive_margin)
    keys = trained.model.embedder(trained.inputs.x_train[rows])
    for kind, over in (("supervised", "rows"), ("pairs", "pairs")):
        expected = supervised_contrastive(
            keys, trained.memory.labels[rows], 10, temperature=0.1, over=over
        )
        assert values[kind] == pytest.approx(expected.item(), rel=1e-5)


def test_a_mixed_query_keeps_the_neighbors_of_the_unmixed_row(trained, make_preset):
    objective = objective_of(trained, make_preset(mixup_alpha=0.4, mixup_probability=1.0))
    seen = []
    handle = trained.model.attention.register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[2])
    )
    try:
        parts, clean = objective.terms(torch.arange(32), torch.Generator().manual_seed(0))
    finally:
        handle.remove()
    assert torch.equal(seen[0], objective.neighbors.distances[:32])
    assert clean is None
    assert torch.isfinite(torch.stack([*parts.values()])).all()


def test_a_mixed_batch_has_one_share(trained, make_preset, monkeypatch):
    objective = objective_of(trained, make_preset(mixup_alpha=0.4, mixup_probability=1.0))
    mixed = []
    real = PixelMLP.embed_mixed

    def seen(embedder, x, x_cat, partner, share):
        mixed.append((partner, share))
        return real(embedder, x, x_cat, partner, share)

    monkeypatch.setattr(PixelMLP, "embed_mixed", seen)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        objective.terms(torch.arange(32), generator)
    shares = [float(share.unique()) for _, share in mixed]
    assert all(0.5 <= share <= 1 for share in shares)
    assert shares[0] != shares[1]


def test_pairs_count_alike_in_the_notebooks_contrastive_term(trained):
    keys = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator()), dim=1)
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    scores = keys @ keys.T / 0.1
    pairs, rows = [], []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        total = scores[i, others].logsumexp(0)
        own = [float(total - scores[i, j]) for j in others if labels[j] == labels[i]]
        pairs += own
        rows += [sum(own) / len(own)] if own else []
    over_pairs = supervised_contrastive(keys, labels, 3, over="pairs")
    assert float(over_pairs) == pytest.approx(sum(pairs) / len(pairs), rel=1e-5)
    over_rows = supervised_contrastive(keys, labels, 3)
    assert float(over_rows) == pytest.approx(sum(rows) / len(rows), rel=1e-5)


def test_images_and_columns_are_both_split_with_seed_42(digits, make_preset):
    inputs = make_inputs(digits, make_preset(), 7)
    assert inputs.x_train.shape == (400, 1, 8, 8)
    assert inputs.x_train.dtype == torch.uint8
    assert not set(inputs.train_index) & set(inputs.test_index)
    assert int(inputs.held_out.sum()) == 40
    assert len(set(inputs.y_train[inputs.held_out].tolist())) == 10
    mnist_like = make_inputs(digits, make_preset(image_size=16, channels=3), 7)
    assert mnist_like.x_train.shape == (400, 3, 16, 16)


def test_study_mlp_is_as_described():
    embedder = TabularMLP(3, dim=16)
    widths = [m.weight.shape for m in embedder.modules() if isinstance(m, torch.nn.Linear)]
    rates = [m.p for m in embedder.modules() if isinstance(m, torch.nn.Dropout)]
    norms = [m for m in embedder.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert widths == [(256, 3), (256, 256), (16, 256)]
    assert rates == [0.2, 0.1]
    assert len(norms) == 2
    torch.testing.assert_close(embedder(NUMBERS).norm(dim=1), torch.ones(6))


def test_mixing_a_row_with_itself_changes_nothing():
    images = torch.randint(0, 256, (6, 1, 4, 4))
    for embedder, rows in ((TabularMLP(3, 4), NUMBERS), (PixelMLP(16, 4), images)):
        same = (torch.arange(6), torch.full((6, 1), 0.7))
        mixed = embedder.eval().embed_mixed(rows, None, *same)
        torch.testing.assert_close(embedder.key(mixed), embedder(rows))
