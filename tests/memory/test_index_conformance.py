"""Every index is held to the exact search: distances, units, order, ties, ids and errors."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

from nearwise.functional import METRICS, paired_distances, topk_neighbors
from nearwise.memory import NeighborIndex, make_index
from nearwise.memory.faiss_index import FAISS_INDEXES
from tests.reference.search import slow_topk

METRICS_OF = {name: kind.metrics for name, kind in FAISS_INDEXES.items()}
ALL_INDEXES = [
    (name, metric)
    for name in ("exact", "exact-on-device", "ivf-flat", *FAISS_INDEXES)
    for metric in METRICS
    if name.startswith("exact") or metric in METRICS_OF.get(name, METRICS[:4])
]
# Share of the true neighbors an approximate index must find on the rows below.
MIN_RECALL = 0.9

every_index = pytest.mark.parametrize(
    ("name", "metric"), ALL_INDEXES, ids=[f"{name}-{metric}" for name, metric in ALL_INDEXES]
)


def rows(n, d=8, seed=0):
    """Clustered rows: what indexes are made for."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(20, d)) * 2
    return torch.from_numpy(centers[rng.integers(0, 20, n)] + rng.normal(size=(n, d))).float()


def lattice(n, d=3, seed=0):
    """Many ties and copies; no rows of zeros."""
    values = torch.randint(0, 3, (n, d), generator=torch.Generator().manual_seed(seed))
    return torch.cat([values.float(), torch.ones(n, 1)], 1)


def fitted(name, metric, keys, ids=None):
    return empty(name, metric).fit(keys, ids)


def empty(name, metric):
    """An index by name; "exact-on-device" takes the way of accelerators, on the CPU."""
    if name == "exact-on-device":
        return make_index("exact", metric, device=torch.device("cpu"))
    return make_index(name, metric)


def check(index, query, keys, k, query_ids=None, key_ids=None):
    """Exact indexes agree in every tie; the others in the distances of what they found."""
    want = topk_neighbors(query, keys, k, metric=index.metric, query_ids=query_ids, key_ids=key_ids)
    got = index.search(query, k, query_ids)
    assert got.distances.dtype == torch.float32 and got.indices.dtype == torch.int64
    assert got.distances.shape == got.indices.shape == (len(query), k)
    if index.is_exact:
        assert torch.equal(got.indices, want.indices)
        assert torch.equal(got.distances, want.distances)
        return got
    pairs = [
        list(zip(*row, strict=True)) for row in zip(got[0].tolist(), got[1].tolist(), strict=True)
    ]
    assert pairs == [sorted(row) for row in pairs]
    assert all(len(set(row)) == k for row in got.indices.tolist())
    again = paired_distances(query.double(), keys[got.indices].double(), index.metric)
    torch.testing.assert_close(got.distances, again.float(), rtol=1e-6, atol=1e-12)
    # By distance: among copies any is as good.
    found = got.distances <= want.distances[:, -1:] + 1e-6
    assert found.float().mean() >= MIN_RECALL
    return got


@every_index
def test_it_is_a_neighbor_index_and_says_what_it_is(name, metric):
    index = empty(name, metric)
    assert isinstance(index, NeighborIndex) and len(index) == 0
    assert index.metric == metric and index.is_exact == (name not in ("hnsw", "ivf-flat"))
    index.fit(rows(50), torch.arange(50) + 7)
    assert len(index) == 50 and index.ids.tolist() == list(range(7, 57))
    assert "n_rows=50" in repr(index)


@every_index
@pytest.mark.parametrize("k", [1, 10])
def test_distances_units_and_order(name, metric, k):
    keys = rows(1000)
    check(fitted(name, metric, keys), rows(40, seed=1), keys, k)


@every_index
def test_all_rows_can_be_asked_for(name, metric):
    keys = rows(60)
    index = fitted(name, metric, keys)
    got = check(index, rows(5, seed=1), keys, 60)
    assert (got.indices.sort(1).values == torch.arange(60)).all()
    ids = torch.arange(60)
    got = check(index, keys[:5], keys, 59, ids[:5], ids)
    assert not (got.indices == ids[:5, None]).any()


@every_index
def test_units_by_hand(name, metric):
    keys = torch.tensor([[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0]])
    got = fitted(name, metric, keys).search(torch.tensor([[3.0, 4.0]]), 3)
    want = {
        "euclidean": [0, 5, 10],
        "sqeuclidean": [0, 25, 100],
        "cosine": [0, 0, 2],
        "inner_product": [-50, -25, 25],
        "manhattan": [0, 7, 14],
    }
    torch.testing.assert_close(got.distances[0], torch.tensor(want[metric]).float())
    assert got.indices[0].tolist() == ([1, 0, 2] if metric == "inner_product" else [0, 1, 2])


@every_index
def test_ties_go_to_the_lowest_position(name, metric):
    keys = lattice(300)
    index = fitted(name, metric, keys)
    check(index, lattice(20, seed=1), keys, 25)
    if index.is_exact and metric != "cosine":
        got = index.search(keys[:9], 7)
        distances, indices = slow_topk(keys[:9].numpy(), keys.numpy(), 7, metric)
        np.testing.assert_array_equal(got.indices, indices)
        np.testing.assert_allclose(got.distances, distances, rtol=1e-6)


@every_index
def test_twenty_copies_of_every_row_never_return_the_query_itself(name, metric):
    keys = rows(30).repeat(20, 1)
    ids = torch.randperm(600) + 1000
    index = fitted(name, metric, keys, ids)
    got = check(index, keys, keys, 15, ids, ids)
    assert not (ids[got.indices] == ids[:, None]).any()
    if index.is_exact and metric != "inner_product":
        assert (got.distances == 0).all()


@every_index
def test_a_query_is_left_out_by_id_and_not_by_distance(name, metric):
    keys = rows(500)
    index = fitted(name, metric, keys, torch.arange(500) * 3)
    own = torch.arange(20) * 3
    check(index, keys[:20], keys, 5, own, index.ids)
    got = check(index, rows(20, seed=1), keys, 5, own, index.ids)  # far from their namesakes
    assert not (got.indices == torch.arange(20)[:, None]).any()
    unknown = check(index, keys[:20], keys, 5, own + 1, index.ids)
    if metric != "inner_product":
        assert (unknown.distances[:, 0] == 0).all()


@every_index
def test_rows_are_added_and_removed_without_changing_the_others(name, metric):
    rng = torch.Generator().manual_seed(0)
    keys, ids = rows(400), torch.arange(400)
    index = fitted(name, metric, keys)
    query = rows(15, seed=1)
    for step in range(6):
        gone = ids[torch.randperm(len(ids), generator=rng)[:30]]
        index.remove(gone)
        keep = ~torch.isin(ids, gone)
        more = rows(45, seed=step + 2)
        new_ids = torch.arange(45) + int(ids[keep].max()) + 1
        index.add(more) if step % 2 else index.add(more, new_ids)
        keys, ids = torch.cat([keys[keep], more]), torch.cat([ids[keep], new_ids])
        assert torch.equal(index.ids, ids) and len(index) == len(ids)
        check(index, query, keys, 8)
        check(index, keys[:9], keys, 8, ids[:9], ids)
    index.add(rows(600, seed=77))
    check(index, query, torch.cat([keys, rows(600, seed=77)]), 8)


@every_index
def test_all_rows_can_be_removed_and_rows_added_again(name, metric):
    index = fitted(name, metric, rows(50))
    index.remove(index.ids)
    assert len(index) == 0
    with pytest.raises(ValueError, match="no rows of the index"):
        index.search(rows(2), 1)
    keys = rows(70, seed=3)
    index.add(keys)
    check(index, rows(5, seed=1), keys, 6)
    check(index.fit(rows(90)), rows(5, seed=1), rows(90), 6)


@every_index
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_is_measured_as_stored(name, metric, dtype):
    keys, query = rows(300).to(dtype), rows(6, seed=1).to(dtype)
    check(fitted(name, metric, keys), query, keys, 9)


@pytest.mark.parametrize(
    ("name", "metric"), [pair for pair in ALL_INDEXES if "euclidean" in pair[1]]
)
def test_a_far_origin_costs_no_neighbors(name, metric):
    keys, query = rows(500).double() + 1e5, rows(6, seed=1).double() + 1e5
    check(fitted(name, metric, keys), query, keys, 9)


@every_index
def test_a_row_of_zeros_is_a_row_like_any_other(name, metric):
    keys = rows(100)
    keys[3] = 0
    index = fitted(name, metric, keys)
    check(index, keys[:5], keys, 100)


@every_index
def test_no_queries_give_no_neighbors(name, metric):
    got = fitted(name, metric, rows(50)).search(torch.empty(0, 8), 3)
    assert got.distances.shape == got.indices.shape == (0, 3)


BAD = float("nan")


@every_index
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda i: i.search(torch.tensor([[BAD] * 8]), 1), "query holds NaN or infinity"),
        (lambda i: i.search(torch.full((1, 8), -np.inf), 1), "query holds NaN or infinity"),
        (lambda i: i.fit(torch.tensor([[BAD] * 8])), "keys holds NaN or infinity"),
        (lambda i: i.add(torch.tensor([[BAD] * 8])), "keys holds NaN or infinity"),
        (lambda i: i.fit(torch.empty(0, 8)), "There are no keys"),
        (lambda i: i.search(torch.ones(1, 7), 1), "query has 7 features and the index 8"),
        (lambda i: i.add(torch.ones(1, 7)), "keys has 7 features and the index 8"),
        (lambda i: i.search(torch.ones(1, 8), 51), "n_neighbors=51 exceeds the 50 rows"),
        (lambda i: i.search(torch.ones(1, 8), 50, torch.tensor([4])), "49 after leaving out"),
        (lambda i: i.search(torch.ones(1, 8), 0), "positive integer"),
        (lambda i: i.search(torch.ones(2, 8), 1, torch.tensor([4])), "one id per row"),
        (lambda i: i.fit(torch.ones(2, 8), torch.tensor([4, 4])), "more than once"),
        (lambda i: i.add(torch.ones(1, 8), torch.tensor([4])), "already in the index"),
        (lambda i: i.remove(torch.tensor([4, 99])), "1 of 2 ids .* first 99"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(name, metric, act, message):
    keys = rows(50)
    index = fitted(name, metric, keys)
    with pytest.raises(ValueError, match=message):
        act(index)
    check(index, rows(4, seed=1), keys, 5)


@every_index
@pytest.mark.parametrize("again", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_finds_the_same_and_lives_its_own_life(name, metric, again):
    keys, query = rows(300), rows(5, seed=1)
    index = fitted(name, metric, keys)
    index.remove(torch.arange(30))
    twin = again(index)
    want = index.search(query, 6)
    index.remove(torch.arange(30, 60))
    got = twin.search(query, 6)
    assert torch.equal(got.indices, want.indices) and torch.equal(got.distances, want.distances)
    twin.add(keys[:30])
    check(twin, query, torch.cat([keys[30:], keys[:30]]), 6)
    assert len(again(empty(name, metric)).fit(keys)) == 300


@every_index
def test_an_index_made_again_from_what_it_learned_finds_the_same(name, metric):
    keys, ids, query = rows(1000) + 3, torch.randperm(1000) + 7, rows(30, seed=1)
    index = fitted(name, metric, keys, ids)
    again = empty(name, metric).restore(index.state(), keys, ids)
    assert again.n_fitted == 1000 and again.name == name.removesuffix("-on-device")
    for k, own in ((9, None), (5, ids[:30])):
        want, got = index.search(query, k, own), again.search(query, k, own)
        assert torch.equal(got.indices, want.indices)
        assert torch.equal(got.distances, want.distances)


@every_index
def test_an_index_made_again_of_fewer_rows_is_the_same_by_every_way(name, metric):
    keys, ids, query = rows(1000), torch.arange(1000), rows(30, seed=1)
    state, stay = fitted(name, metric, keys, ids).state(), torch.arange(1000) % 20 > 0
    less = empty(name, metric).restore(state, keys[stay], ids[stay])
    check(less, query, keys[stay], 9)
    fewer = torch.arange(1000) % 10 > 0
    want = empty(name, metric).restore(state, keys[fewer], ids[fewer]).search(query, 9)
    got = empty(name, metric).restore(less.state(), keys[fewer], ids[fewer]).search(query, 9)
    assert torch.equal(got.indices, want.indices) and torch.equal(got.distances, want.distances)
    with pytest.raises(ValueError, match="state of the index"):
        empty(name, metric).restore(less.state(), keys, ids)


@every_index
def test_an_index_that_was_not_fitted_says_so(name, metric):
    with pytest.raises(ValueError, match="no rows of the index"):
        empty(name, metric).search(rows(2), 1)
    with pytest.raises(ValueError, match="fit"):
        empty(name, metric).add(rows(2))


@every_index
def test_threads_may_search_while_another_adds_and_removes(name, metric):
    index = fitted(name, metric, rows(300))
    errors, stop = [], threading.Event()

    def search():
        try:
            while not stop.is_set():
                got = index.search(rows(8, seed=1), 5)
                assert bool(torch.isfinite(got.distances).all())
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(8):
        index.add(rows(40, seed=step))
        index.remove(index.ids[:40])
    stop.set()
    for reader in readers:
        reader.join()
    assert not errors and len(index) == 300
