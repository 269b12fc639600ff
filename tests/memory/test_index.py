"""Indexes are chosen by name, ask for what they need, and serve rows that came and went."""

import sys
import threading
import time

import pytest
import torch

from nearwise import AttnKNNClassifier
from nearwise.functional import topk_neighbors
from nearwise.memory import AUTO_EXACT_BELOW, ExactIndex, make_index
from nearwise.memory.cell_index import CellIndex
from nearwise.memory.changed_index import ChangedIndex
from nearwise.memory.faiss_index import FaissFlatIP, FaissFlatL2, HnswIndex
from nearwise.memory.index import ReadWriteLock


def test_auto_is_exact_below_one_hundred_thousand_rows_then_ivf_flat():
    assert AUTO_EXACT_BELOW == 100_000
    assert type(make_index("auto", n_rows=99_999)) is ExactIndex
    assert type(make_index("auto", "cosine", 100_000)) is CellIndex
    with pytest.raises(ValueError, match="needs n_rows"):
        make_index("auto")


def test_names():
    assert type(make_index("exact")) is ExactIndex
    assert type(make_index("faiss-flat-l2")) is FaissFlatL2
    assert type(make_index("faiss-flat-ip", "cosine")) is FaissFlatIP
    assert type(make_index("hnsw")) is HnswIndex
    with pytest.raises(ValueError, match="Use one of auto, exact"):
        make_index("annoy")
    with pytest.raises(ValueError, match="does not support metric='cosine'"):
        make_index("faiss-flat-l2", "cosine")
    with pytest.raises(ValueError, match="Use inner_product or cosine"):
        make_index("faiss-flat-ip", "euclidean")
    with pytest.raises(ValueError, match="metric='l1' is not known"):
        make_index("exact", "l1")


def test_missing_faiss_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    make_index("exact")
    make_index("auto", n_rows=100_000)
    for name in ("faiss-flat-l2", "hnsw"):
        with pytest.raises(ImportError) as caught:
            make_index(name)
        assert str(caught.value) == (
            'the FAISS index needs the extra "faiss": pip install nearwise[faiss]'
        )


def test_hnsw_has_the_parameters_of_the_study():
    index = make_index("hnsw").fit(torch.randn(50, 4))
    assert index._index.hnsw.nb_neighbors(1) == 32
    assert index._index.hnsw.efConstruction == 200
    assert index._parameters(10).efSearch == 64


def test_hnsw_masks_removed_rows_and_then_builds_anew():
    index = make_index("hnsw").fit(torch.randn(100, 4))
    index.remove(torch.arange(20))
    assert index._index.ntotal == 100
    index.remove(torch.arange(20, 40))
    assert index._index.ntotal == 60 and len(index) == 60


def test_ivf_learns_its_cells_again_when_it_has_doubled():
    index = make_index("ivf-flat").fit(torch.randn(1000, 4))
    index.add(torch.randn(1000, 4))
    assert len(index.state().learned["centers"]) == 25
    index.add(torch.randn(10, 4))
    assert len(index.state().learned["centers"]) == 51 and len(index) == 2010


def test_a_writer_waits_for_readers_and_readers_for_the_writer():
    lock, seen = ReadWriteLock(), []

    def write():
        with lock.write():
            seen.append("write")

    def read():
        with lock.read():
            seen.append("read")

    with lock.read(), lock.read():
        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(0.05)
        late = threading.Thread(target=read)
        late.start()
        time.sleep(0.05)
        assert seen == []
    writer.join()
    late.join()
    assert seen == ["write", "read"]


def test_keys_that_carry_a_gradient_are_indexed():
    keys = torch.randn(50, 3, requires_grad=True)
    index = ExactIndex().fit(keys[:40])
    index.add(keys[40:])
    assert index.search(keys.detach()[45:46], 1).indices.tolist() == [[45]]


def rows(n, seed=0, lattice=False):
    drawn = torch.randn(n, 3, generator=torch.manual_seed(seed))
    return drawn.round() if lattice else drawn


@pytest.mark.parametrize("lattice", [False, True], ids=["random", "ties"])
@pytest.mark.parametrize("own", [False, True], ids=["new rows", "rows left out of their own"])
@pytest.mark.parametrize("gone", [[], [0], list(range(40)), [99, 3, 57]], ids=len)
def test_it_finds_what_a_search_of_all_rows_of_now_finds(lattice, own, gone):
    before = rows(100, lattice=lattice)
    sealed = ExactIndex("euclidean").fit(before, torch.arange(100))
    stay = torch.tensor([i for i in range(100) if i not in gone])
    keys = torch.cat([before[stay], rows(7, 1, lattice)])
    ids = torch.cat([stay, torch.arange(100, 107)])
    changed = ChangedIndex(sealed, keys, ids)
    assert changed.share_changed == (len(gone) + 7) / 100
    query, query_ids = (keys, ids) if own else (rows(20, 2, lattice), None)
    found = changed.search(query, 9, query_ids)
    wanted = topk_neighbors(
        query, keys, 9, query_ids=query_ids, key_ids=None if query_ids is None else ids
    )
    torch.testing.assert_close(found.distances, wanted.distances)
    assert torch.equal(found.indices, wanted.indices)


def test_rows_in_another_order_and_no_tail():
    sealed = ExactIndex("euclidean").fit(rows(30), torch.arange(30))
    order = torch.randperm(30, generator=torch.manual_seed(3))
    found = ChangedIndex(sealed, rows(30)[order], order).search(rows(5, 2), 4)
    wanted = topk_neighbors(rows(5, 2), rows(30), 4)
    assert torch.equal(order[found.indices], wanted.indices)


def test_a_trained_index_survives_small_changes_and_is_made_anew_after_large_ones(monkeypatch):
    kind = type(make_index("ivf-flat"))
    X = rows(300).double().numpy()
    y = (X[:, 0] > 0).astype(int)
    model = AttnKNNClassifier(
        estimator=None, cv=3, random_state=0, settings={"embedder": "identity", "index": "ivf-flat"}
    )
    model.fit(X, y).predict_proba(X[:3])
    trained, build = [], kind._build
    monkeypatch.setattr(kind, "_build", lambda index: trained.append(index) or build(index))
    new = rows(30, 5).double().numpy()
    ids = model.add(new[:4], (new[:4, 0] > 0).astype(int))
    assert set(model.kneighbors(new[:4], 1)[1][:, 0]) == set(ids.tolist())  # found at once
    model.remove(ids[:2])
    assert not {*ids[:2].tolist()} & {*model.kneighbors(new[:2], 5)[1].ravel().tolist()}
    model.predict_proba(new)
    assert trained == []
    model.add(new[4:], (new[4:, 0] > 0).astype(int))
    model.predict_proba(new)
    assert len(trained) == 1
