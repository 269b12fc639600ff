"""Hierarchical attention: one softmax whose logits carry the level of the clusters."""

import math

import pytest
import torch

from nearwise.nn import NeighborAttention, cluster_features, cluster_ids, describe_neighborhood
from tests.nn.test_neighbor_attention import CLOSE, make_head, neighborhood, trained_looking

KINDS = ["label", "band"]


def seen_of(kind="random", k=6):
    d, y, r, base, own, w = neighborhood(kind, k=k)
    return describe_neighborhood(d, y, r, base, own, w), base


def slow_two_levels(plain, size_power, score, log_size, features, ids, alive):
    """Weights (K,) of one query and head: a softmax over clusters, times one within each."""
    clusters = sorted({int(c) for c, a in zip(ids, alive, strict=True) if a})
    members = {c: [j for j in range(len(ids)) if int(ids[j]) == c and alive[j]] for c in clusters}
    total = {c: math.log(sum(math.exp(plain[j]) for j in members[c])) for c in clusters}
    level = {}
    for c in clusters:
        j = members[c][0]
        assert float(log_size[j]) == pytest.approx(math.log(len(members[c])), abs=1e-6)
        extra = float(features[j] @ score)
        level[c] = total[c] + (size_power - 1) * math.log(len(members[c])) + extra
    top = sum(math.exp(x) for x in level.values())
    weights = [0.0] * len(ids)
    for c in clusters:
        for j in members[c]:
            weights[j] = math.exp(level[c]) / top * math.exp(plain[j] - total[c])
    return weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", ["random", "lattice"])
def test_one_softmax_equals_two_levels_in_loops(kind, data):
    seen, _ = seen_of(data)
    torch.manual_seed(1)
    attention = trained_looking(NeighborAttention(2, clusters=kind))
    ids = cluster_ids(seen, kind)
    log_size, features = cluster_features(seen, ids)
    with torch.no_grad():
        logits, _ = attention(seen)
        plain = logits - attention.clusters(seen)
    for b in range(len(ids)):
        alive = torch.isfinite(seen.log_weight[b]).tolist()
        for h in range(2):
            expected = slow_two_levels(
                plain[b, :, h].tolist(),
                float(attention.clusters.size_power[h].detach()),
                attention.clusters.score.weight[h].detach(),
                log_size[b],
                features[b],
                ids[b],
                alive,
            )
            found = torch.softmax(logits[b, :, h], dim=0)
            torch.testing.assert_close(found, torch.tensor(expected), **CLOSE)


def test_bands_of_ranks_double_in_width():
    seen, _ = seen_of(k=12)
    assert cluster_ids(seen, "band")[0].tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_starts_as_plain_attention(kind):
    seen, base = seen_of()
    plain, levels = make_head(1), make_head(1, clusters=kind)
    levels.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(
        levels([seen], base).log_proba, plain([seen], base).log_proba, **CLOSE
    )


def test_without_size_a_label_counts_by_its_mean_vote():
    distances = torch.zeros(1, 6)
    labels = torch.tensor([[0, 0, 0, 0, 0, 1]])
    base = torch.log(torch.full((1, 3), 1 / 3))
    seen = describe_neighborhood(distances, labels, torch.full((1, 6), 0.5), base)
    head = make_head(1, clusters="label", null=None, num_heads=1, has_base=False)
    with torch.no_grad():
        head.attention[0].clusters.size_power.zero_()
    weights = head([seen], base).weights[0][0]
    torch.testing.assert_close(weights, torch.tensor([0.1] * 5 + [0.5]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbor_that_is_left_out_counts_for_no_cluster(kind):
    d, y, r, base, own, w = neighborhood()
    w[:, 3] = -math.inf
    seen = describe_neighborhood(d, y, r, base, own, w)
    kept = [0, 1, 2, 4, 5]
    moved = seen._replace(distances=seen.distances.clone())
    moved.distances[:, 3] = 17.0
    ids = cluster_ids(seen, kind)
    for one, other in zip(cluster_features(seen, ids), cluster_features(moved, ids), strict=True):
        torch.testing.assert_close(one[:, kept], other[:, kept])
