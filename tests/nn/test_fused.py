"""The fused vote and loss against the plain ones, on random rows and on a lattice of ties."""

import pytest
import torch

from nearwise.nn import (
    Embedder,
    NeighborNetwork,
    fused_leave_one_out_nll,
    neighbor_vote,
    soft_cross_entropy,
    soft_targets,
)
from tests.reference.losses import (
    leave_one_out_nll,
    leave_self_out,
    neighbor_probabilities,
    neighbor_scores,
    slow_leave_one_out_nll,
)

N, D, C = 300, 5, 3


def case(lattice, cosine, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(N, D, generator=generator, dtype=torch.float64)
    if lattice:
        rows = rows.round().clamp(-1, 1)
    if cosine:
        rows = torch.nn.functional.normalize(rows + 0.1, dim=1)
    labels = torch.randint(C, (N,), generator=generator)
    return rows, labels, generator


def network(cosine):
    built = NeighborNetwork(
        Embedder(D, cosine, {}), C, similarity="cosine" if cosine else "euclidean"
    )
    return built.double()


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("mixed_ids", [False, True])
def test_fused_loss_and_gradients_are_those_of_the_plain_loss(lattice, cosine, soft, mixed_ids):
    rows, labels, generator = case(lattice, cosine)
    model = network(cosine)
    ids = torch.randperm(N, generator=generator) * 7
    query_ids = ids[:64]
    if mixed_ids:
        query_ids = torch.stack([query_ids, query_ids.roll(1)], dim=1)
        query_ids[0, 1] = query_ids[0, 0]
    if soft:
        labels = torch.softmax(torch.randn(N, C, generator=generator, dtype=torch.float64), dim=1)
    options = {
        "smoothing": 0.1,
        "sample_weight": torch.rand(64, generator=generator, dtype=torch.float64),
        "candidate_weight": torch.rand(N, generator=generator, dtype=torch.float64),
    }
    results = []
    for fused in (False, True):
        keys = rows.clone().requires_grad_()
        query = keys[:64] * 1.0
        common = (labels[:64], labels, query_ids, ids, C)
        if fused:
            loss = fused_leave_one_out_nll(
                query, keys, model.scale, *common, similarity=model.similarity, **options
            )
        else:
            loss = leave_one_out_nll(neighbor_scores(model, query, keys), *common, **options)
        results.append([loss, *torch.autograd.grad(loss, [keys, model.log_scale])])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_loops_over_pairs(lattice, soft, smoothing):
    rows, labels, generator = case(lattice, False)
    if soft:
        labels = torch.softmax(torch.randn(N, C, generator=generator, dtype=torch.float64), dim=1)
    ids = torch.randperm(N, generator=generator) + 100
    common = (labels[:8], labels, ids[:8], ids, C)
    loss = fused_leave_one_out_nll(rows[:8], rows, torch.tensor(1.0), *common, smoothing=smoothing)
    targets = soft_targets(labels, C).tolist()
    expected = slow_leave_one_out_nll(
        rows[:8].tolist(),
        rows.tolist(),
        1.0,
        targets[:8],
        targets,
        ids[:8].tolist(),
        ids.tolist(),
        smoothing,
    )
    # the root's epsilon moves distances of equal rows from 0 to 0.001
    assert loss.item() == pytest.approx(expected, rel=2e-3 if lattice else 1e-5)


def test_a_class_that_is_nowhere_near_gives_a_finite_loss_and_gradient():
    keys = torch.tensor([[0.0], [0.1], [0.2]], requires_grad=True)
    ids, labels = torch.arange(3), torch.tensor([1, 0, 0])
    loss = fused_leave_one_out_nll(keys, keys, torch.tensor(1.0), labels, labels, ids, ids, 2)
    loss.backward()
    assert loss.isfinite() and keys.grad.isfinite().all()


@pytest.mark.parametrize("cosine", [False, True])
def test_vote_is_that_of_the_plain_softmax_and_sums_to_one(cosine):
    rows, labels, _ = case(lattice=True, cosine=cosine)
    model, ids = network(cosine), torch.arange(N)
    proba = neighbor_vote(
        rows, rows, model.scale, labels, C, query_ids=ids, key_ids=ids, similarity=model.similarity
    )
    scores = leave_self_out(neighbor_scores(model, rows, rows), ids, ids)
    torch.testing.assert_close(proba, neighbor_probabilities(scores, labels, C))
    torch.testing.assert_close(proba.sum(dim=1), torch.ones(N, dtype=torch.float64))


def test_two_candidates_with_the_id_of_the_query_are_both_left_out():
    keys = torch.tensor([[0.0], [0.0], [3.0]])
    proba = neighbor_vote(
        torch.zeros(1, 1),
        keys,
        torch.tensor(1.0),
        torch.tensor([0, 0, 1]),
        2,
        query_ids=torch.tensor([5]),
        key_ids=torch.tensor([5, 5, 6]),
    )
    assert proba.tolist() == [[0.0, 1.0]]


def test_query_without_another_candidate_raises():
    with pytest.raises(ValueError, match="no candidate left"):
        fused_leave_one_out_nll(
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.tensor(1.0),
            torch.tensor([0]),
            torch.tensor([0]),
            torch.tensor([3]),
            torch.tensor([3]),
            2,
        )


def test_keys_far_from_the_origin_keep_their_small_differences():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 4, generator=generator)
    ids, labels = torch.arange(50), torch.randint(2, (50,), generator=generator)
    common = {"query_ids": ids, "key_ids": ids}
    near = neighbor_vote(rows, rows, torch.tensor(1.0), labels, 2, **common)
    far = neighbor_vote(rows + 1000, rows + 1000, torch.tensor(1.0), labels, 2, **common)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-3)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("n_learned", [0, 20, N])
def test_only_the_learned_keys_get_a_gradient(cosine, n_learned):
    rows, labels, _ = case(False, cosine)
    model, ids = network(cosine), torch.arange(N)
    gradients = []
    for given in (None, n_learned):
        query, keys = rows[:64].clone().requires_grad_(), rows.clone().requires_grad_()
        loss = fused_leave_one_out_nll(
            query,
            keys,
            model.scale,
            labels[:64],
            labels,
            ids[:64],
            ids,
            C,
            similarity=model.similarity,
            n_learned=given,
        )
        loss.backward()
        gradients.append((loss.detach(), query.grad, keys.grad))
    everything, some = gradients
    torch.testing.assert_close(some[:2], everything[:2])
    learned = torch.zeros(N, D, dtype=torch.float64) if some[2] is None else some[2]
    torch.testing.assert_close(learned[:n_learned], everything[2][:n_learned])
    assert not learned[n_learned:].any()


# Cross-entropy over classes, of hard and of soft labels.


def test_hard_labels_as_probabilities_give_the_same_losses():
    labels = torch.randint(C, (N,))
    soft = soft_targets(labels, C).double()
    logits = torch.randn(N, C, dtype=torch.float64)
    torch.testing.assert_close(soft_cross_entropy(logits, soft), soft_cross_entropy(logits, labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_torch(smoothing):
    logits, labels = torch.randn(N, C), torch.randint(C, (N,))
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(soft_cross_entropy(logits, labels, smoothing=smoothing), expected)


def test_sample_weight_equals_repeated_rows():
    logits, labels = torch.randn(3, C), torch.tensor([0, 1, 2])
    weighted = soft_cross_entropy(logits, labels, sample_weight=torch.tensor([2.0, 1.0, 0.0]))
    repeated = soft_cross_entropy(logits[[0, 0, 1]], labels[[0, 0, 1]])
    torch.testing.assert_close(weighted, repeated)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="smoothing must be in"):
        soft_targets(torch.tensor([0]), 2, 1.0)
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\) or \(n, 2\)"):
        soft_targets(torch.zeros(1, 3), 2)
