"""The exact search keeps its promises on random, lattice and hostile inputs."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from nearwise.functional import METRICS, kernels, search_cpu, topk_neighbors
from nearwise.functional import search as search_module
from nearwise.functional.search_cpu import refuse_not_finite
from nearwise.functional.search_torch import _Search, search_torch
from tests.reference.search import slow_topk

PATHS = ["pairs", "products", "sifted", "torch"]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    """Run on the path of few pairs, on those of matrix products, and on that of other devices."""
    _take(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=PATHS[:3])
def compiled_path(request, monkeypatch):
    """Run on the compiled paths alone."""
    _take(request.param, monkeypatch)


def _take(path, monkeypatch):
    def plain(query, keys, n_neighbors, metric, ids, memory_budget, norms):
        refuse_not_finite("query", query)
        refuse_not_finite("keys", keys)
        return search_torch(query, keys, n_neighbors, metric, ids, memory_budget)

    if path != "pairs":
        monkeypatch.setattr(search_module, "measured_at_once", lambda *_: False)
    halves = path == "sifted"  # keys sifted by bfloat16 products, whether that is faster or not
    monkeypatch.setattr(search_cpu, "_halves_win", lambda width: halves)
    if halves:
        monkeypatch.setattr(search_cpu, "_SIFTED_QUERIES", 4)
        monkeypatch.setattr(search_cpu, "_FIRST_TILE", 4)
        monkeypatch.setattr(search_cpu, "_FIRST_PER_NEIGHBOR", 0)
        monkeypatch.setattr(search_cpu, "_SIFTED_TILE", 7)
    if path == "torch":
        monkeypatch.setattr(search_module, "search_cpu", plain)


def rows(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lattice(n, d, seed=0):
    """Few distinct values: many ties, duplicate rows, rows of zeros."""
    return torch.randint(-1, 2, (n, d), generator=torch.Generator().manual_seed(seed)).float()


def check(query, keys, k, metric, query_ids=None, key_ids=None, **options):
    got = topk_neighbors(
        query, keys, k, metric=metric, query_ids=query_ids, key_ids=key_ids, **options
    )
    want_d, want_i = slow_topk(
        query.double().numpy(), keys.double().numpy(), k, metric, query_ids, key_ids
    )
    assert got.distances.dtype == torch.float32 and got.indices.dtype == torch.int64
    np.testing.assert_allclose(got.distances.numpy(), want_d, rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(got.indices.numpy(), want_i)
    return got


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 5, 60])
def test_random_rows_match_the_slow_search(path, metric, k):
    check(rows(7, 6, 1), rows(60, 6, 2), k, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 4, 59])
def test_ties_go_to_the_lowest_row_and_the_query_is_left_out_by_id(path, metric, k):
    keys = lattice(60, 3)
    if metric == "cosine":  # 0.5 * chord of unit vectors rounds differently in numpy
        keys = torch.nn.functional.one_hot(lattice(60, 1)[:, 0].long() + 1, 4).float()
    ids = torch.randperm(60, generator=torch.Generator().manual_seed(3)) + 100
    got = check(keys, keys, k, metric, ids, ids)
    assert not (got.indices == torch.arange(60)[:, None]).any()


@pytest.mark.parametrize("metric", METRICS)
def test_all_keys_that_bear_the_id_of_the_query_are_left_out(path, metric):
    """Several views of one row share its id; whole tiles take another path than a few rows."""
    keys = rows(200, 6).repeat(20, 1) + 1e-3 * rows(4000, 6, 1)
    ids = torch.arange(200).repeat(20)
    got = topk_neighbors(keys[:50], keys, 10, metric=metric, query_ids=ids[:50], key_ids=ids)
    assert not (ids[got.indices] == ids[:50, None]).any()
    for i in range(0, 50, 10):
        others = (ids != ids[i]).nonzero()[:, 0]
        want = topk_neighbors(keys[i : i + 1], keys[others], 10, metric=metric)
        assert torch.equal(got.indices[i], others[want.indices[0]])
        assert torch.equal(got.distances[i], want.distances[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("metric", METRICS)
def test_every_dtype_is_measured_as_stored(path, metric, dtype):
    check(rows(5, 9, 1, dtype), rows(50, 9, 2, dtype), 6, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1e-22, 1e-9, 1e9, 1e25])
def test_tiny_and_huge_values_are_still_exact(compiled_path, metric, scale):
    keys = rows(50, 4, 2, torch.float64) * scale
    if metric in ("sqeuclidean", "inner_product") and scale == 1e25:
        keys = keys * 1e-8  # the distance itself must fit float32
    check(keys[:5], keys, 7, metric)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_far_origin_costs_no_digits(path, metric, dtype):
    keys = (rows(80, 4, 2, torch.float64) + 1e6).to(dtype)
    check(keys[:9], keys, 7, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_small_tiles_and_sorted_input_change_nothing(path, metric):
    keys = rows(3000, 200, 2)
    query = rows(40, 200, 1)
    whole = topk_neighbors(query, keys, 12, metric=metric)
    small = topk_neighbors(query, keys, 12, metric=metric, memory_budget=2**20)
    assert torch.equal(whole.indices, small.indices)
    assert torch.equal(whole.distances, small.distances)
    order = topk_neighbors(query[:1], keys, 1024, metric=metric).indices[0].flip(0)
    worst_first = topk_neighbors(query[:1], keys[order], 12, metric=metric)
    assert torch.equal(order[worst_first.indices[0]], whole.indices[0])


@pytest.mark.parametrize("metric", METRICS)
def test_neighbors_closer_than_a_float32_product_can_tell(path, metric):
    sides = torch.tensor([1.0, -1.0]).repeat(1500)[:, None]  # two clumps: their mean is no help
    keys = sides * rows(1, 40) + 1e-6 * rows(3000, 40, 1)
    query = rows(20, 40, 2)
    few = topk_neighbors(query, keys, 12, metric=metric)
    every_pair_measured = topk_neighbors(query, keys, 2000, metric=metric)
    assert torch.equal(few.indices, every_pair_measured.indices[:, :12])
    assert torch.equal(few.distances, every_pair_measured.distances[:, :12])


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("metric", METRICS)
def test_matmul_precision_and_autocast_change_nothing(path, metric, precision):
    query, keys = rows(50, 64, 1), rows(3000, 64, 2)
    keys[1500:] = keys[:1500] + 1e-4  # closer than bfloat16 can tell
    want = topk_neighbors(query, keys, 10, metric=metric)
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = topk_neighbors(query, keys, 10, metric=metric)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(got.indices, want.indices) and torch.equal(got.distances, want.distances)


def test_inputs_that_need_gradients_or_are_not_contiguous():
    keys = rows(8, 30).T.requires_grad_()
    got = topk_neighbors(keys[:4], keys, 3)
    assert not got.distances.requires_grad and torch.equal(got.indices[:, 0], torch.arange(4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["query", "keys"])
def test_nan_and_infinity_are_refused_with_their_row(path, bad, where):
    data = {"query": rows(4, 3), "keys": rows(9, 3)}
    data[where][2, 1] = bad
    with pytest.raises(ValueError, match=rf"{where} holds NaN or infinity, first in row 2"):
        topk_neighbors(data["query"], data["keys"], 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_neighbors": 10}, "n_neighbors=10 exceeds the 9 keys"),
        ({"n_neighbors": 0}, "not a positive integer"),
        ({"n_neighbors": 2.5}, "not a positive integer"),
        ({"metric": "chebyshev"}, "Use one of euclidean"),
        ({"keys": torch.empty(0, 3)}, "no keys"),
        ({"keys": torch.ones(9, 4)}, "query has 3 features and keys have 4"),
        ({"query": torch.ones(3)}, "shape"),
        ({"query": torch.ones(4, 3).long()}, "dtype"),
        ({"query_ids": torch.arange(5)}, "one id per row"),
        ({"query_ids": torch.arange(4), "n_neighbors": 9}, "8 after leaving out the query"),
        ({"memory_budget": 10}, "too small"),
    ],
)
def test_misuse_says_what_was_seen_and_what_to_do(path, change, message):
    arguments = {"query": torch.ones(4, 3), "keys": torch.ones(9, 3), "n_neighbors": 2} | change
    with pytest.raises(ValueError, match=message):
        topk_neighbors(**arguments)


@pytest.fixture
def three_threads():
    """Set torch to three threads, and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_torch_keeps_its_threads(three_threads):
    query, keys = rows(400, 16, 1), rows(5000, 16, 2)
    got = topk_neighbors(query, keys, 8)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    alone = topk_neighbors(query, keys, 8)
    assert torch.equal(got.indices, alone.indices) and torch.equal(got.distances, alone.distances)
    torch.set_num_threads(3)
    query[399, 3] = torch.nan
    with pytest.raises(ValueError, match="query holds NaN or infinity, first in row 399"):
        topk_neighbors(query, keys, 8)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_working_memory_stays_within_the_budget(dtype):
    def peak(field):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024

    query, keys = rows(2000, 128, 1, dtype), rows(30_000, 128, 2, dtype)
    topk_neighbors(query, keys[:5000], 4)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before, budget = peak("VmRSS"), 12 * 2**20
    topk_neighbors(query, keys, 4, memory_budget=budget)
    assert peak("VmHWM") - before < budget + 2**20  # and the results


def test_kernels_compile_where_nothing_can_be_written(monkeypatch):
    original = kernels.njit

    def njit(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels.compiled(lambda x: x + 1)(1) == 2


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_collapsed_keys_are_settled_without_measuring_every_key(metric, monkeypatch):
    classes = rows(8, 32, 2).repeat(250, 1)
    keys = torch.nn.functional.normalize(classes + 1e-4 * rows(2000, 32), dim=1)
    query = torch.nn.functional.normalize(classes[:50] + 1e-4 * rows(50, 32, 1), dim=1)
    measured = []
    way = _Search._measure_all
    monkeypatch.setattr(
        _Search, "_measure_all", lambda self, *a: (measured.append(len(a[2])), way(self, *a))
    )
    got = search_torch(query, keys, 10, metric, None, 2**26)
    want = topk_neighbors(query, keys, 10, metric=metric)
    assert torch.equal(got[1], want.indices)
    assert measured and sum(measured) == 0  # float32 products alone could not tell them apart


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
@pytest.mark.parametrize("spread", ["even", "heavy tails", "collapsed", "lattice"])
@pytest.mark.parametrize(("n_queries", "k"), [(1100, 10), (256, 39)])
def test_keys_sifted_by_bfloat16_products_give_the_same_neighbors(
    metric, spread, n_queries, k, monkeypatch
):
    scale = rows(5001, 1, 3).mul(3).exp() if spread == "heavy tails" else torch.ones(5001, 1)
    keys, query = rows(5001, 48) * scale, rows(n_queries, 48, 1) * scale[:n_queries]
    if spread == "collapsed":
        keys, query = rows(8, 48, 2).repeat(626, 1)[:5001] + 1e-4 * keys, keys[:n_queries]
    if spread == "lattice":
        keys = lattice(1000, 9).repeat(6, 1)[:5001]
        query = keys[-n_queries:]
    own = torch.arange(5001 - n_queries, 5001) if spread == "lattice" else None
    sifted, way = [], kernels.sift
    monkeypatch.setattr(kernels, "sift", lambda *given: sifted.append(way(*given)) or sifted[-1])
    found = []
    for wins in (True, False):
        monkeypatch.setattr(search_cpu, "_halves_win", lambda width, wins=wins: wins)
        found.append(topk_neighbors(query, keys, k, metric=metric, query_ids=own))
    assert sifted and all(map(torch.equal, *found))


def test_the_race_of_products_leaves_the_number_of_threads_alone():
    before = torch.get_num_threads()
    search_cpu._halves_win.__wrapped__(40)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("make", [rows, lattice])
def test_one_query_among_many_keys_matches_the_slow_search(metric, make):
    keys = make(5000, 9)
    keys[7], keys[4000] = 0.0, keys[11]
    for at in (7, 11):
        check(keys[at : at + 1], keys, 20, metric, torch.tensor([at]), torch.arange(5000))
        check(keys[at : at + 1] * 1e-17, keys * 1e-17, 20, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1e4, 1e6, 1e18])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_one_far_row_leaves_all_others_their_neighbors(path, metric, size, offset):
    keys = rows(60, 8) + offset
    keys[7] = size
    check(rows(20, 8, seed=1) + offset, keys, 5, metric)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("size", [3e19, 1e18, 1e-19, 1e-30])
def test_rows_of_any_size_have_the_neighbors_of_usual_ones(path, metric, size):
    query, keys = rows(20, 8, seed=1), rows(60, 8)
    wanted = topk_neighbors(query, keys, 5, metric=metric).indices
    assert torch.equal(topk_neighbors(query * size, keys * size, 5, metric=metric).indices, wanted)
    keys[::2] *= size
    wanted = topk_neighbors(query, keys.double(), 5, metric=metric).indices
    assert torch.equal(topk_neighbors(query, keys, 5, metric=metric).indices, wanted)
