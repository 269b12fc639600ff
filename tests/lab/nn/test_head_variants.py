"""Variants of the head: clusters, sizes and temperatures do what they say, and leak nothing."""

import math

import pytest
import torch

from nearwise.functional import uniform_weights
from nearwise.lab.nn.head_variants import (
    ClusteredNeighborAttention,
    VariantConfig,
    VariantHead,
    cluster_features,
    cluster_ids,
    entropy_adaptive_k,
    nearest_mask,
)
from nearwise.memory import StoreError
from nearwise.nn import describe_neighborhood
from tests.classifier.cases import CHEAP, attn_knn, blobs, fit_once, same, sums_to_one
from tests.nn.test_neighbor_attention import (
    CLOSE,
    POOLINGS,
    neighborhood,
    spaces_and_base,
    trained_looking,
)
from tests.reference.neighbor_head import slow_head

KINDS = ["label", "band"]


VARIANTS = {
    "sizes": {"k_ensemble": (3, 9)},
    "entropy": {"adaptive_k": "entropy"},
    "clusters": {"clusters": "label"},
    "bands": {"clusters": "band", "temperature": True},
    "calibrated": {"ece_weight": 2.0, "brier_weight": 1.0},
    "temperatures": {"k_ensemble": (3, 9), "k_temperature": True},
}


def make_head(n_spaces=2, n_classes=3, **settings):
    prior = torch.arange(1, n_classes + 1).float()
    return VariantHead(n_spaces, prior / prior.sum(), **{"has_base": True, **settings})


def classifier(**variant):
    head, train = VariantConfig(epochs=3, **variant), {"epochs": 2}
    return attn_knn(**{**CHEAP, "cv": 0.3, "train": train, "head": head})


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
    attention = trained_looking(ClusteredNeighborAttention(2, clusters=kind))
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


def test_adaptive_k_follows_the_rule_of_the_study():
    sharp = torch.zeros(50)
    sharp[0] = 1.0
    middle = torch.zeros(50)
    middle[:20] = 1 / 20  # entropy log 20 / log 50 = 0.77
    flat = torch.full((50,), 1 / 50)
    assert entropy_adaptive_k(torch.stack([sharp, middle, flat])).tolist() == [15, 30, 50]
    assert entropy_adaptive_k(torch.eye(12)[:1]).tolist() == [5]
    assert entropy_adaptive_k(torch.tensor([[0.9, 0.1, 0.0]])).tolist() == [3]
    assert entropy_adaptive_k(torch.ones(1, 1)).tolist() == [1]


@pytest.mark.parametrize("k", [2, 7, 50, 1000])
def test_uniform_weights_keep_all_neighbors_despite_rounding(k):
    assert entropy_adaptive_k(uniform_weights(torch.zeros(1, k))).tolist() == [k]


def test_a_mask_keeps_the_nearest():
    assert nearest_mask(torch.tensor([1, 3]), 3).tolist() == [[True, False, False], [True] * 3]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_adaptive_size_asks_fewer_where_the_weights_are_concentrated(pooling):
    k = 20
    distances = torch.stack([torch.linspace(0, 40, k), torch.linspace(1, 1.001, k)])
    labels = torch.zeros(2, k, dtype=torch.int64)
    base = torch.log(torch.full((2, 3), 1 / 3))
    seen = describe_neighborhood(distances, labels, torch.full((2, k), 0.5), base)
    head = make_head(2, pooling=pooling, adaptive_k="entropy", num_heads=1)
    for weights in head([seen, seen], base).weights:
        asked = (weights > 0).sum(1)
        assert asked[0] == 6 and asked[1] > asked[0]


def test_temperature_of_a_size_sharpens_the_weights_of_that_size_alone():
    spaces, base = spaces_and_base(n_spaces=1)
    head = make_head(1, k_ensemble=(2, 5), k_temperature=True, null=None, num_heads=1)
    with torch.no_grad():
        head.log_k_temperature.copy_(torch.tensor([math.log(0.5), 0.0]))
    scores = -spaces[0].distances + spaces[0].log_weight
    few = torch.nn.functional.pad(torch.softmax(2 * scores[:, :2], dim=1), (0, 4))
    many = torch.nn.functional.pad(torch.softmax(scores[:, :5], dim=1), (0, 1))
    torch.testing.assert_close(head(spaces, base).weights[0], (few + many) / 2)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", ["random", "lattice"])
@pytest.mark.parametrize("null", ["auto", None])
def test_a_head_of_several_sizes_equals_loops(pooling, kind, null):
    spaces, base = spaces_and_base(kind, n=3, k=4)
    head = make_head(pooling=pooling, null=null, k_ensemble=(1, 3, 20), num_heads=2)
    with torch.no_grad():
        output = trained_looking(head)(spaces, base)
        pooled, alone, weights, null_mass = slow_head(head, spaces, base, head.k_ensemble)
    torch.testing.assert_close(output.log_proba.exp(), pooled, **CLOSE)
    torch.testing.assert_close(output.neighbor_log_proba.exp(), alone, **CLOSE)
    torch.testing.assert_close(torch.cat(output.weights, dim=1), weights, **CLOSE)
    torch.testing.assert_close(output.null_mass, null_mass, **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_the_fit_and_is_not_saved(variant, tmp_path):
    X, y = blobs()
    model = classifier(**VARIANTS[variant]).fit(X, y)
    proba = model.predict_proba(X)
    assert sums_to_one(proba) and not same(proba, fit_once(classifier(), X, y).predict_proba(X))
    with pytest.raises(StoreError, match="was not written"):
        model.save(tmp_path / "model")


def test_a_variant_beside_a_base_sums_to_one():
    X, y = blobs()
    model = classifier(adaptive_k="entropy").set_params(base="auto", settings__pooling="mixture")
    assert sums_to_one(model.fit(X, y).predict_proba(X))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_learned_temperature_starts_as_none_and_divides_the_pooled_log_probabilities(pooling):
    spaces, base = spaces_and_base()
    plain, warm = make_head(pooling=pooling), make_head(pooling=pooling, temperature=True)
    warm.load_state_dict(plain.state_dict(), strict=False)
    before = plain(spaces, base).log_proba
    torch.testing.assert_close(warm(spaces, base).log_proba, before, **CLOSE)
    with torch.no_grad():
        warm.log_temperature.fill_(math.log(2.0))
    after = warm(spaces, base).log_proba
    torch.testing.assert_close(after, torch.log_softmax(before / 2, dim=1), **CLOSE)
