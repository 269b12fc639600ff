"""What the engine on disk does beside what all of them promise."""

import shutil

import numpy as np
import pytest

from nearwise.memory.stores import bulk as bulk_module
from nearwise.memory.stores import disk as module
from nearwise.memory.stores.disk import DiskStore
from nearwise.memory.ties import tie_order
from tests.memory.stores.cases import (
    SCHEMA,
    SUMMARY,
    apart,
    assert_same,
    batches,
    edit,
    everything,
    recall,
    some_rows,
    without_ties,
)
from tests.memory.stores.servers import require

N_ROWS = 2_000


@pytest.fixture(autouse=True)
def _packages():
    require("lance", "faiss")


@pytest.fixture
def indexed(monkeypatch):
    """Index stores of few rows."""
    monkeypatch.setattr(bulk_module, "AUTO_EXACT_BELOW", 500)


@pytest.fixture
def rows():
    return without_ties(some_rows(N_ROWS))


def test_an_index_is_searched_as_wide_as_its_recall_asks(tmp_path, indexed, monkeypatch, rows):
    monkeypatch.setattr(bulk_module, "_FEWEST_PROBES", 1)
    store = DiskStore.create(tmp_path / "s", SCHEMA, batches(rows), SUMMARY)
    probes = store._head.probes
    assert all(1 < n < store._reader._bulk.n_cells(name) for name, n in probes.items())
    assert recall(store.reader(), rows) > 0.93
    again = DiskStore.open(str(tmp_path / "s"))
    assert again._head.probes == probes
    np.testing.assert_array_equal(
        again.reader().search("all", rows.keys["all"][:9], 20),
        store.reader().search("all", rows.keys["all"][:9], 20),
    )
    made = store.snapshot()
    assert all(0.95 <= found <= 1 for found in made.recall.values())


@pytest.mark.parametrize("k", [1, 30, 400, N_ROWS])
def test_as_many_are_found_as_are_asked_for(tmp_path, indexed, monkeypatch, rows, k):
    monkeypatch.setattr(bulk_module, "_FEWEST_PROBES", 1)
    store = DiskStore.create(tmp_path / "s", SCHEMA, batches(rows), SUMMARY)
    near = np.argsort(apart(rows.keys["all"][:1], rows.keys["all"], "euclidean")[0])
    reader = store.apply(edit(1, removed=rows.ids[near[:300]]), 0)
    for exclude in (None, rows.ids[near[400:401]]):
        found = reader.search("all", rows.keys["all"][:1], k, exclude)[0]
        n_left = N_ROWS - 300 - (exclude is not None)
        assert len(set(found[found >= 0])) >= min(k, n_left)


@pytest.mark.parametrize("in_parts", [False, True])
def test_of_copies_those_are_found_whose_ids_a_hash_puts_first(
    tmp_path, indexed, monkeypatch, in_parts
):
    rows = some_rows(2_000)
    for keys in rows.keys.values():
        keys[:] = keys[np.arange(2_000) // 500]  # the same key 500 times
    if in_parts:
        monkeypatch.setattr(bulk_module, "BATCH", 300)
        monkeypatch.setattr(bulk_module, "_SHARD", 500 * 4 * 4)
    store = DiskStore.create(tmp_path / "s", SCHEMA, batches(rows), SUMMARY)
    for start in range(0, 2_000, 500):
        copies = rows.ids[start : start + 500]
        found = store.reader().search("all", rows.keys["all"][start : start + 1], 60)[0]
        assert set(found) == set(copies[tie_order(copies)][: len(found)]) and len(found) >= 60


def test_an_index_in_parts_is_one_and_may_be_moved(tmp_path, indexed, monkeypatch, rows):
    monkeypatch.setattr(bulk_module, "BATCH", 300)
    whole = DiskStore.create(tmp_path / "whole", SCHEMA, batches(rows), SUMMARY)
    monkeypatch.setattr(bulk_module, "_SHARD", 500 * 4 * 4)
    store = DiskStore.create(tmp_path / "s", SCHEMA, batches(rows), SUMMARY)
    assert len(list((tmp_path / "s").rglob("*.lists"))) == 2
    shutil.move(tmp_path / "s", tmp_path / "elsewhere")
    store = DiskStore.open(str(tmp_path / "elsewhere"))
    assert_same(everything(store.reader()), rows)
    for name in SCHEMA.spaces:
        queries = rows.keys[name][:50]
        found = [np.sort(s.reader().search(name, queries, 20)) for s in (whole, store)]
        assert np.mean(found[0] == found[1]) > 0.99
    store.apply(edit(1, removed=rows.ids[:10]), 0)
    assert store.snapshot().n_rows == N_ROWS - 10
    assert_same(everything(store.reader()), rows.take(np.arange(10, N_ROWS)))


@pytest.mark.parametrize("killed", [False, True])
def test_a_snapshot_that_stops_before_its_end_changes_nothing(tmp_path, monkeypatch, killed):
    rows = some_rows(200)
    store = DiskStore.create(tmp_path / "s", SCHEMA, batches(rows), SUMMARY)
    store.apply(edit(1, removed=rows.ids[:5], parts={"p": b"x"}), 0)
    with monkeypatch.context() as patch:

        def stop(*args):
            raise KeyboardInterrupt

        patch.setattr(module, "_write_head", stop)
        if killed:  # nobody clears up
            patch.setattr(module.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(KeyboardInterrupt):
            store.snapshot()
    assert len(list((tmp_path / "s").glob("bulk-*"))) == 1 + killed
    for opened in (store, DiskStore.open(str(tmp_path / "s"))):
        assert opened.reader().version == 1 and opened._head.version == 0
        assert_same(everything(opened.reader()), rows.take(np.arange(5, 200)))
        assert opened.find(opened.lineage, version=1).parts == {"p": b"x"}
    store.snapshot()
    assert len(list((tmp_path / "s").glob("bulk-*"))) == 2  # and the one that it replaced
    assert_same(everything(store.reader()), rows.take(np.arange(5, 200)))


@pytest.mark.parametrize("order", [[3, 2, 1], [0, 1, 1], [[0, 1], [1, 2]]])
def test_rows_that_are_not_in_the_order_of_their_ids_are_refused(tmp_path, order):
    rows = some_rows(5)
    parts = [rows.take(np.array(part)) for part in (order if np.ndim(order) == 2 else [order])]
    with pytest.raises(ValueError, match="must come in the order of their ids, each once"):
        DiskStore.create(tmp_path / "s", SCHEMA, parts, SUMMARY)


def test_what_a_removed_row_held_is_gone_with_the_second_snapshot(tmp_path):
    rows, told = some_rows(50), b"only the removed row says this"
    rows.rows[3] = told

    def on_disk():
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        return any(told in file.read_bytes() for file in files)

    store = DiskStore.create(tmp_path / "s", SCHEMA, [rows], SUMMARY)
    store.apply(edit(1, removed=rows.ids[3:4], parts={"p": told}), 0)
    held = store.reader()
    store.snapshot()
    assert_same(everything(held), rows.take(np.arange(50) != 3))
    assert on_disk()
    store.snapshot()
    assert not on_disk()
