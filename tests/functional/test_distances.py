"""Distances have stated units, agree with scikit-learn and have usable gradients."""

import pytest
import torch
from sklearn.metrics import pairwise_distances as sklearn_distances

from nearwise.functional import METRICS, paired_distances, pairwise_distances


def want(query, keys, metric):
    if metric == "inner_product":
        return -(query @ keys.T)
    return torch.from_numpy(sklearn_distances(query.numpy(), keys.numpy(), metric=metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_both_forms_agree_with_scikit_learn(metric, offset):
    query = torch.randn(7, 5, dtype=torch.float64) + offset
    keys = torch.randn(11, 5, dtype=torch.float64) + offset
    expected = want(query, keys, metric)
    torch.testing.assert_close(pairwise_distances(query, keys, metric), expected)
    neighbors = keys.expand(7, 11, 5)
    torch.testing.assert_close(paired_distances(query, neighbors, metric), expected)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine", "manhattan"])
def test_identical_rows_are_at_zero(metric):
    rows = torch.randn(6, 9) + 5
    assert (paired_distances(rows, rows[:, None], metric) == 0).all()
    assert pairwise_distances(rows, rows, metric).diagonal().max() < 5e-3


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_are_finite_for_identical_rows_and_rows_of_zeros(metric):
    query = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    keys = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    pairwise_distances(query, keys, metric).sum().backward()
    paired_distances(query, keys.expand(2, 2, 2), metric).sum().backward()
    assert torch.isfinite(query.grad).all() and torch.isfinite(keys.grad).all()


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_match_finite_differences(metric):
    query = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q, k: pairwise_distances(q, k, metric), (query, keys))
    near = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q, n: paired_distances(q, n, metric), (query, near))


def test_half_precision_is_computed_in_float32():
    query, keys = torch.randn(3, 64), torch.randn(4, 64)
    got = pairwise_distances(query.bfloat16(), keys.half())
    assert got.dtype == torch.float32
    expected = pairwise_distances(query.bfloat16().float(), keys.half().float())
    torch.testing.assert_close(got, expected)


def test_no_keys_give_no_distances():
    for metric in METRICS:
        assert pairwise_distances(torch.ones(2, 3), torch.ones(0, 3), metric).shape == (2, 0)


@pytest.mark.parametrize(
    ("query", "keys", "metric", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 4), "euclidean", "same n_features"),
        (torch.ones(3), torch.ones(2, 3), "euclidean", "same n_features"),
        (torch.ones(2, 3).long(), torch.ones(2, 3), "euclidean", "floating"),
        (torch.ones(2, 3), torch.ones(2, 3), "l1", "metric='l1' is not known"),
    ],
)
def test_misuse_is_refused(query, keys, metric, message):
    with pytest.raises(ValueError, match=message):
        pairwise_distances(query, keys, metric)


def test_paired_distances_refuse_neighbors_of_other_queries():
    with pytest.raises(ValueError, match="n_neighbors"):
        paired_distances(torch.ones(2, 3), torch.ones(4, 5, 3))


@pytest.mark.parametrize("size", [3e38, 3e19, 1e-19, 1e-30])
def test_angles_do_not_depend_on_the_length_of_rows(size):
    query, keys = torch.rand(7, 5), torch.rand(11, 5)
    neighbors = keys.expand(7, 11, 5)
    for distances, of in ((pairwise_distances, keys), (paired_distances, neighbors)):
        wanted = distances(query, of, "cosine")
        torch.testing.assert_close(distances(query * size, of * size, "cosine"), wanted)
