"""The network: scores, gradients at distance 0, and a description that builds it again."""

import json

import pytest
import torch

from nearwise.nn import (
    Embedder,
    NeighborNetwork,
    TableEmbedder,
    build_network,
    euclidean,
    network_config,
)
from tests.reference.losses import neighbor_scores


@pytest.mark.parametrize("lattice", [False, True])
def test_euclidean_is_the_root_of_the_summed_squares(lattice):
    query, keys = torch.randn(5, 4).double(), torch.randn(7, 4).double()
    if lattice:
        query, keys = query.round(), keys.round()
        keys[0] = query[0]
    squares = torch.stack([(keys - q).square().sum(dim=1) for q in query])
    torch.testing.assert_close(euclidean(query, keys), (squares + 1e-6).sqrt())


def test_gradient_at_equal_rows_is_finite():
    rows = torch.ones(3, 4, requires_grad=True)
    euclidean(rows, rows).sum().backward()
    assert torch.isfinite(rows.grad).all()


def test_cosine_starts_at_one_over_007_and_needs_unit_keys():
    network = NeighborNetwork(Embedder(2, True, {}), 2, similarity="cosine")
    assert network.scale.item() == pytest.approx(1 / 0.07) and network.log_scale.requires_grad
    assert NeighborNetwork(Embedder(1, False, {}), 2).scale.item() == 1.0
    keys = network(torch.randn(4, 2)).keys
    torch.testing.assert_close(neighbor_scores(network, keys, keys), keys @ keys.T / 0.07)
    with pytest.raises(ValueError, match="normalize=True"):
        NeighborNetwork(Embedder(2, False, {}), 2, similarity="cosine")


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(
    "embedder",
    [
        TableEmbedder(3, normalize=True, dim=4),
        TableEmbedder(3, (2, 3), None, trunk="mlp", hidden=(8,), dim=4, dropout=0.1),
    ],
    ids=["linear", "mlp"],
)
def test_description_builds_the_same_network_through_json(embedder, head):
    network = NeighborNetwork(embedder, 3, head).eval()
    copy = build_network(json.loads(json.dumps(network_config(network)))).eval()
    copy.load_state_dict(network.state_dict())
    x_num, x_cat = torch.randn(5, 3), torch.ones(5, 2, dtype=torch.int64)
    one, other = network(x_num, x_cat), copy(x_num, x_cat)
    assert torch.equal(one.keys, other.keys)
    assert (one.logits is None) == (not head)
    assert not head or torch.equal(one.logits, other.logits)


def test_seed_decides_the_starting_weights_and_leaves_the_global_state():
    config = network_config(NeighborNetwork(TableEmbedder(2, dim=3), 2))
    before = torch.get_rng_state()
    one, same, other = (build_network(config, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [network.state_dict()["embedder.trunk.1.weight"] for network in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_unknown_embedder_is_named():
    with pytest.raises(ValueError, match="Unknown embedder kind 'cnn'"):
        build_network({"embedder": {"kind": "cnn"}, "n_classes": 2})
