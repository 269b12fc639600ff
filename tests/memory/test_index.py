"""Indexes are chosen by name and ask kindly for what they need."""

import sys
import threading
import time

import pytest
import torch

from nearwise.memory import AUTO_EXACT_BELOW, ExactIndex, make_index
from nearwise.memory.cell_index import CellIndex
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
