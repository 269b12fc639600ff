"""The study's attention against loops, and what all four forms promise."""

import pytest
import torch
from nearwise_lab.nn import (
    DistanceAttention,
    LearnedDistanceAttention,
    MultiHeadNeighborAttention,
    UniformAttention,
)

from tests.reference.attention import slow_multi_head_weights

ALL = [
    UniformAttention(),
    DistanceAttention(0.5),
    LearnedDistanceAttention(0.5),
    MultiHeadNeighborAttention(8),
]


def neighborhood(lattice=False, n_rows=6, n_neighbors=5, dim=8, dtype=torch.float64):
    query = torch.randn(n_rows, dim, dtype=dtype)
    neighbors = torch.randn(n_rows, n_neighbors, dim, dtype=dtype)
    if lattice:  # ties, duplicates and exact zeros
        query, neighbors = query.round(), neighbors.round()
        neighbors[:, :2] = query.unsqueeze(1)
    return query, neighbors


@pytest.mark.parametrize("lattice", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2, 4])
@pytest.mark.parametrize("n_neighbors", [1, 5])
def test_multi_head_weights_equal_the_loop(lattice, num_heads, n_neighbors):
    module = MultiHeadNeighborAttention(8, num_heads).double()
    with torch.no_grad():  # also temperatures outside their bounds
        module.log_temperature.copy_(torch.linspace(-6, 4, num_heads))
        for parameter in module.distance_bias.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    query, neighbors = neighborhood(lattice, n_neighbors=n_neighbors)
    expected = slow_multi_head_weights(module, query, neighbors)
    torch.testing.assert_close(module(query, neighbors), expected)


@pytest.mark.parametrize("module", ALL, ids=lambda module: type(module).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_neighbors", [1, 2, 7])
def test_weights_are_probabilities_and_masked_neighbors_get_none(module, dtype, n_neighbors):
    query, neighbors = neighborhood(True, n_neighbors=n_neighbors, dtype=dtype)
    mask = torch.rand(len(query), n_neighbors) < 0.5
    mask[:, -1] = True
    for keep in (None, mask):
        weights = module.to(dtype)(query, neighbors, mask=keep)
        assert weights.dtype == dtype
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(query), dtype=dtype))
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("module", ALL, ids=lambda module: type(module).__name__)
def test_row_that_keeps_no_neighbor_raises(module):
    query, neighbors = neighborhood(dtype=torch.float32)
    with pytest.raises(ValueError, match="keeps no neighbor"):
        module.float()(query, neighbors, mask=torch.zeros(6, 5, dtype=torch.bool))


@pytest.mark.parametrize("module", ALL, ids=lambda module: type(module).__name__)
def test_shapes_that_do_not_fit_are_named(module):
    query, neighbors = neighborhood(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"\(B, K, D\)"):
        module(query[:3], neighbors)
    with pytest.raises(ValueError, match="distances must have shape"):
        module(query, neighbors, torch.zeros(6, 4))
    with pytest.raises(ValueError, match="holds no neighbor"):
        module(query, neighbors[:, :0])


def test_far_neighbors_do_not_overflow():
    distances = torch.tensor([[0.0, 1e30, 3e38]])
    weights = DistanceAttention(0.01)(torch.zeros(1, 2), torch.zeros(1, 3, 2), distances)
    assert weights.tolist() == [[1.0, 0.0, 0.0]]


def test_distance_attention_is_a_softmax_of_negative_squared_distances():
    query, neighbors = neighborhood()
    squared = torch.stack([(neighbors[:, j] - query).square().sum(1) for j in range(5)], dim=1)
    expected = torch.softmax(-squared / 2.0, dim=1)
    torch.testing.assert_close(DistanceAttention(2.0)(query, neighbors), expected)
    learned = LearnedDistanceAttention(2.0).double()
    torch.testing.assert_close(learned(query, neighbors), expected)


def test_learned_distance_attention_learns_to_trust_the_nearest():
    module = LearnedDistanceAttention()
    distances = torch.tensor([[0.1, 1.0, 2.0]])
    before = module(torch.zeros(1, 1), torch.zeros(1, 3, 1), distances)[0, 0].item()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        (-module(torch.zeros(1, 1), torch.zeros(1, 3, 1), distances)[0, 0].log()).backward()
        optimizer.step()
    assert module(torch.zeros(1, 1), torch.zeros(1, 3, 1), distances)[0, 0].item() > before + 0.1


def test_study_starts_with_zero_biases_and_its_temperature():
    module = MultiHeadNeighborAttention(8, 2, temperature=0.5, temperature_bounds=(0.05, 2.0))
    biases = [p for name, p in module.named_parameters() if name.endswith("bias")]
    assert biases and all((bias == 0).all() for bias in biases)
    torch.testing.assert_close(module.temperature, torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 6, "num_heads": 4}, "multiple of num_heads"),
        ({"dim": 8, "temperature": 9.0}, "inside temperature_bounds"),
        ({"dim": 8, "temperature_bounds": (0.0, 5.0)}, "positive"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadNeighborAttention(**arguments)
