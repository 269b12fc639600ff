"""Promises of the pretrained head: what moves its predictions, and what does not."""

import copy
import hashlib
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from nearwise.functional import topk_neighbors
from nearwise.nn import (
    NeighborSet,
    PretrainedNeighborHead,
    RememberedSpace,
    shared_head,
    shared_number_head,
)
from nearwise.nn.neighbor_trunk import FOLDER

N_CLASSES = 4


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys (n, 5), labels that depend on them, and a base's log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(n, 5, generator=generator)
    labels = (2 * (keys[:, 0] > 0) + (keys[:, 1] > 0)).long()
    scores = torch.randn(n, N_CLASSES, generator=generator)
    return keys, labels, torch.log_softmax(scores, dim=1)


@pytest.fixture(params=["random weights", "package"])
def head(request) -> PretrainedNeighborHead:
    if request.param == "package":
        return shared_head()
    torch.manual_seed(0)
    made = PretrainedNeighborHead().eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def asked(keys, labels, query, base=None, query_base=None, *, k=16) -> list[NeighborSet]:
    """One space without a base, or two with one."""
    spaces = []
    for supervised in (False,) if base is None else (False, True):
        options = {"base_log_proba": base, "supervised": supervised}
        space = RememberedSpace.of(keys, labels, n_classes=N_CLASSES, n_columns=5, **options)
        spaces.append(space.describe(topk_neighbors(query, keys, k), query_base))
    return spaces


@pytest.fixture(params=[False, True], ids=["no base", "base"])
def given(request) -> tuple[list[NeighborSet], torch.Tensor | None]:
    """Neighbors of 20 queries among 80 rows, and their base."""
    keys, labels, base = rows(80)
    query, _, query_base = rows(20, seed=1)
    if not request.param:
        return asked(keys, labels, query), None
    return asked(keys, labels, query, base, query_base), query_base


def test_weights_that_a_fused_optimizer_changed_are_the_ones_that_predict():
    head = copy.deepcopy(shared_head()).requires_grad_(True)
    keys, labels, _ = rows(80)
    spaces = asked(keys, labels, rows(20, seed=1)[0])
    head.predict(spaces)
    head(spaces).log_proba[:, 0].sum().backward()
    torch.optim.AdamW(head.parameters(), lr=0.1, fused=True).step()
    fresh = PretrainedNeighborHead(**head.config)
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(head.predict(spaces).log_proba, fresh.predict(spaces).log_proba)


def test_predictions_follow_the_classes_when_they_are_renamed(head):
    keys, labels, base = rows(80)
    query, _, query_base = rows(20, seed=1)
    order = torch.tensor([2, 0, 3, 1])  # new position of each class
    plain = head.predict(asked(keys, labels, query, base, query_base), query_base)
    back = torch.argsort(order)
    renamed = asked(keys, order[labels], query, base[:, back], query_base[:, back])
    moved = head.predict(renamed, query_base[:, back])
    torch.testing.assert_close(moved.log_proba[:, order], plain.log_proba, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved.weights[0], plain.weights[0], atol=1e-5, rtol=1e-4)


def test_the_order_of_remembered_rows_plays_no_part(head):
    keys, labels, _ = rows(80)
    query = rows(20, seed=1)[0]
    plain = head.predict(asked(keys, labels, query)).log_proba
    order = torch.randperm(80, generator=torch.Generator().manual_seed(3))
    mixed = head.predict(asked(keys[order], labels[order], query)).log_proba
    torch.testing.assert_close(mixed, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_the_scale_of_the_keys_plays_no_part(head, scale):
    keys, labels, _ = rows(80)
    query = rows(20, seed=1)[0]
    plain = head.predict(asked(keys, labels, query)).log_proba
    scaled = head.predict(asked(scale * keys, labels, scale * query)).log_proba
    torch.testing.assert_close(scaled, plain, atol=1e-4, rtol=1e-3)


def padded(space: NeighborSet, n: int) -> NeighborSet:
    """The same neighbors and `n` that are left out, at nonsense distances and of any class."""
    more = NeighborSet(*(tensor[:, :1].expand(-1, n) for tensor in space[:-2]), *space[-2:])
    more = more._replace(
        distances=torch.full_like(more.distances, 7.0),
        labels=torch.ones_like(more.labels),
        log_weight=torch.full_like(more.log_weight, -math.inf),
    )
    pairs = zip(space[:-2], more[:-2], strict=True)
    return NeighborSet(*(torch.cat(pair, dim=1) for pair in pairs), *space[-2:])


def test_padding_changes_nothing_and_gets_no_weight(head, given):
    spaces, base = given
    plain = head.predict(spaces, base)
    wider = head.predict([padded(one, 3) for one in spaces], base)
    torch.testing.assert_close(wider.log_proba, plain.log_proba, atol=1e-5, rtol=1e-4)
    assert all((weight[:, -3:] == 0).all() for weight in wider.weights)


def test_classes_that_are_padding_change_nothing(head):
    keys, labels, _ = rows(80)
    spaces = asked(keys, labels, rows(20, seed=1)[0])
    plain = head.predict(spaces).log_proba
    prior = torch.nn.functional.pad(spaces[0].log_prior, (0, 2), value=-math.inf)
    wider = head.predict([spaces[0]._replace(log_prior=prior)]).log_proba
    torch.testing.assert_close(wider[:, :N_CLASSES], plain, atol=1e-5, rtol=1e-4)
    assert (wider[:, N_CLASSES:].exp() == 0).all()


@pytest.mark.parametrize("n_rows", [1, 2, 3, 20])
@pytest.mark.parametrize("alike", ["labels", "keys", "both"])
def test_one_class_and_copies_give_finite_answers(head, n_rows, alike):
    keys, labels, _ = rows(n_rows)
    if alike != "keys":
        labels = torch.zeros_like(labels)
    if alike != "labels":
        keys = torch.zeros_like(keys)
    output = head.predict(asked(keys, labels, rows(4, seed=1)[0], k=min(16, n_rows)))
    assert output.log_proba.isfinite().all()
    total = sum(weight.sum(1) for weight in output.weights) + output.null_mass
    torch.testing.assert_close(total, torch.ones(4))


def test_a_prediction_without_a_neighbor_is_that_of_the_others(head, given):
    spaces, base = given
    read = head.attend(spaces)
    everything = head.pool(read, spaces, base)
    n_queries, k = spaces[0].labels.shape
    found = [torch.arange(k).repeat(n_queries, 1) for _ in spaces]
    queries, gone = torch.tensor([3, 3, 5]), torch.tensor([-1, 0, -1])
    without = head.predict_without(read, spaces, base, queries, gone, found)
    everyone = everything.log_proba
    torch.testing.assert_close(without[[0, 2]], everyone[queries[[0, 2]]])
    assert not torch.equal(without[1], everyone[3])
    rest = read.without(queries, torch.zeros(3, dtype=torch.int64), found)
    masked = head.pool(
        rest, [one.take(queries) for one in spaces], None if base is None else base[queries]
    )
    torch.testing.assert_close(without[1], masked.log_proba[1])
    assert all((weight[:, 0] == 0).all() for weight in masked.weights)
    total = sum(weight.sum(1) for weight in masked.weights) + masked.null_mass
    torch.testing.assert_close(total, torch.ones(3))


def test_without_any_neighbor_the_class_shares_answer(head, given):
    spaces, base = given
    everyone = [torch.zeros_like(one.labels) for one in spaces]
    nobody = head.attend(spaces).without(torch.arange(20), torch.zeros(20), everyone)
    alone = head.pool(nobody, spaces, base).neighbor_log_proba
    torch.testing.assert_close(alone, spaces[0].log_prior, atol=1e-5, rtol=1e-5)


def test_a_missing_base_is_not_asked(head):
    keys, labels, _ = rows(80)
    spaces = asked(keys, labels, rows(20, seed=1)[0])
    nonsense = rows(20, seed=5)[2]
    plain = head.predict(spaces).log_proba
    torch.testing.assert_close(head.predict(spaces, nonsense).log_proba, plain)


def test_the_weights_of_the_package_are_small_and_of_this_version(tmp_path):
    assert (FOLDER / PretrainedNeighborHead.file).stat().st_size < 2e6
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(FOLDER / PretrainedNeighborHead.file, "pt") as file:
        metadata = file.metadata()
    other = tmp_path / "other.safetensors"
    save_file(
        load_file(FOLDER / PretrainedNeighborHead.file), other, metadata=metadata | {"version": "0"}
    )
    with pytest.raises(ValueError, match="version 0"):
        PretrainedNeighborHead.load(other)


@pytest.mark.parametrize("n_train", [30, 118])
def test_the_package_beats_uniform_votes_on_wine(n_train):
    X, y = load_wine(return_X_y=True)
    X, y = torch.from_numpy((X - X.mean(0)) / X.std(0)).float(), torch.from_numpy(y)
    gains = []
    for seed in range(5):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
        train, test = order[:n_train], order[118:]
        space = RememberedSpace.of(X[train], y[train], n_classes=3, n_columns=13)
        found = topk_neighbors(X[test], X[train], 16)
        log_proba = shared_head().predict([space.describe(found)]).log_proba
        votes = torch.nn.functional.one_hot(y[train][found.indices], 3).float().mean(1)
        uniform = torch.log(0.98 * votes + 0.02 / 3)
        gains.append(float((log_proba - uniform).gather(1, y[test][:, None]).mean()))
    assert np.mean(gains) > 0


def test_compiled_loops_and_torch_agree(head, given):
    spaces, _ = given
    spaces = [padded(one, 2) for one in spaces]
    compiled = head.attend(spaces)
    learner = copy.deepcopy(head).requires_grad_(True)
    plain = learner.attend(spaces)
    for one, other in zip(compiled.scores, plain.scores, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-4, rtol=1e-4)
    for one, other in zip(compiled[1:], plain[1:], strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_is_refused(head):
    keys, labels, base = rows(20)
    found = topk_neighbors(keys, keys, 4)
    of = {"n_classes": N_CLASSES, "n_columns": 5}
    with pytest.raises(ValueError, match="each from 0 to n_classes - 1 = 1"):
        RememberedSpace.of(keys, labels, n_classes=2, n_columns=5)
    with pytest.raises(ValueError, match="give 20 class positions, one per key"):
        RememberedSpace.of(keys, labels[1:], **of)
    with pytest.raises(ValueError, match=r"shape \(20, 3\). Give \(20, 4\)"):
        RememberedSpace.of(keys, labels, **of, base_log_proba=base[:, 1:])
    with pytest.raises(ValueError, match="Give both, or neither"):
        RememberedSpace.of(keys, labels, **of).describe(found, base)
    with pytest.raises(ValueError, match="no spaces to predict from"):
        head.predict([])


@pytest.mark.parametrize(
    ("name", "head"), [("neighbor", shared_head), ("number", shared_number_head)]
)
def test_the_model_card_beside_the_weights_is_of_these_weights(name, head):
    folder = FOLDER
    card = folder.joinpath("README.md").read_text(encoding="utf-8")
    (row,) = [line for line in card.splitlines() if f"`{name}_head.safetensors`" in line]
    content = folder.joinpath(f"{name}_head.safetensors").read_bytes()
    assert f"`{hashlib.sha256(content).hexdigest()}`" in row
    assert f"{sum(weight.numel() for weight in head().parameters()):,} float32" in row
