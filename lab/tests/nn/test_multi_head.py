"""The study's attention against loops, and what it promises."""

import pytest
import torch
from nearwise_lab.nn import MultiHeadNeighborAttention

from lab.tests.reference.attention import slow_multi_head_weights


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_neighbors", [1, 2, 7])
def test_weights_are_probabilities_and_masked_neighbors_get_none(dtype, n_neighbors):
    query, neighbors = neighborhood(True, n_neighbors=n_neighbors, dtype=dtype)
    mask = torch.rand(len(query), n_neighbors) < 0.5
    mask[:, -1] = True
    for keep in (None, mask):
        weights = MultiHeadNeighborAttention(8).to(dtype)(query, neighbors, mask=keep)
        assert weights.dtype == dtype
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(query), dtype=dtype))
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, n: (q[:3], n), r"\(B, K, D\)"),
        (lambda q, n: (q, n, torch.zeros(6, 4)), "distances must have shape"),
        (lambda q, n: (q, n[:, :0]), "holds no neighbor"),
        (lambda q, n: (q, n, None, torch.zeros(6, 5) > 0), "keeps no neighbor"),
        (lambda q, n: (q, n, None, torch.ones(6, 5).long()), r"boolean.*int64.*mask == 1"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change, message):
    query, neighbors = neighborhood(dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        MultiHeadNeighborAttention(8)(*change(query, neighbors))


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
