"""What the engine Milvus does beside what all of them promise."""

import secrets
import threading
from dataclasses import replace

import numpy as np
import pytest

from nearwise.memory.checks import UnknownIdError
from nearwise.memory.stores import Schema, SpaceSchema, access
from nearwise.memory.stores import milvus as module
from nearwise.memory.stores import milvus_server as server_module
from nearwise.memory.stores.milvus import MilvusStore
from tests.memory.stores.cases import (
    SCHEMA,
    SUMMARY,
    assert_same,
    batches,
    edit,
    everything,
    recall,
    some_rows,
    without_ties,
)
from tests.memory.stores.servers import free_port, milvus_server

ROWS = some_rows(60)


class Killed(Exception):
    """The process ends here."""


@pytest.fixture
def uri(milvus_uri, request):
    return f"{milvus_uri}#{request.node.name.partition('[')[0]}_{secrets.token_hex(4)}"


@pytest.fixture
def store(uri):
    made = MilvusStore.create(uri, SCHEMA, [ROWS], SUMMARY)
    yield made
    made._server.drop()
    made.close()


@pytest.mark.parametrize("stop_before", [1, 2, 3, 4])
def test_what_a_killed_writer_left_is_not_seen_and_is_removed(store, monkeypatch, stop_before):
    other = replace(some_rows(5, seed=2), ids=ROWS.ids[:5])
    change = edit(1, other, ROWS.ids[10:13], {"n": 2}, key="k", parts={"p": b"x"})
    before, write = store.reader(), store._server.write
    n_written = 0

    def until(collection, entities):
        nonlocal n_written
        n_written += 1
        if n_written == stop_before:
            raise Killed
        write(collection, entities)

    with monkeypatch.context() as patch:
        patch.setattr(store._server, "write", until)
        with pytest.raises(Killed):
            store.apply(change, 0)
    for reader in (before, store.reader(), MilvusStore.open(store.uri).reader()):
        assert reader.version == 0 and reader.summary == SUMMARY
        assert_same(everything(reader), ROWS)
    assert store.history(store.lineage) == []
    for asked in ({"version": 1}, {"key": "k"}):
        with pytest.raises(KeyError):
            store.find(store.lineage, **asked)

    after = MilvusStore.open(store.uri).apply(edit(1, removed=ROWS.ids[:1]), 0)
    assert_same(everything(after), ROWS.take(np.arange(1, len(ROWS))))
    assert_same(everything(before), ROWS)
    assert store._server.count("born > 0") == 0
    assert store._server.count("died == 1") == 1
    assert [made.key for made in store.history(store.lineage)] == [None]
    assert store.find(store.lineage, version=1).parts == {}


def test_a_request_whose_first_try_was_killed_can_be_repeated(store, monkeypatch):
    change = edit(1, removed=ROWS.ids[:2], key="k")
    with monkeypatch.context() as patch:
        patch.setattr(module._Head, "entity", lambda head: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.apply(change, 0)
    store.apply(change, 0)
    assert store.find(store.lineage, key="k") == change.change


def test_many_rows_are_indexed_and_searched_as_wide_as_the_recall_asks(uri, monkeypatch):
    monkeypatch.setattr(module, "AUTO_EXACT_BELOW", 500)
    monkeypatch.setattr(module, "_FEWEST_PROBES", 1)
    monkeypatch.setattr(module, "RECALL_QUERIES", 60)
    rows = without_ties(some_rows(1_000))
    store = MilvusStore.create(uri, SCHEMA, batches(rows, 500), SUMMARY)
    assert all(1 < n < 128 for n in store._head().probes.values())
    assert [store._server.index_kind(f"key{n}") for n in range(2)] == ["IVF_FLAT"] * 2
    assert recall(store.reader(), rows) > 0.93
    for k in (1, 400, 1_000):
        found = store.reader().search("all", rows.keys["all"][:2], k, rows.ids[:2])
        assert ((found >= 0).sum(1) >= min(k, 999)).all()

    held = store.reader()
    few = store.apply(edit(1, removed=rows.ids[300:]), 0)
    assert recall(few, rows.take(np.arange(300))) > 0.93
    store.snapshot()
    assert [store._server.index_kind(f"key{n}") for n in range(2)] == ["FLAT"] * 2
    assert store.reader().search("all", rows.keys["all"][:1], 5).shape == (1, 13)
    assert recall(store.reader(), rows.take(np.arange(300))) == 1
    assert recall(held, rows.take(np.arange(300)), 1) > 0.9
    monkeypatch.setattr(module, "AUTO_EXACT_BELOW", 250)
    made = store.snapshot()
    assert made.n_rows == 300 and all(0.95 <= share <= 1 for share in made.recall.values())
    assert_same(everything(store.reader()), rows.take(np.arange(300)))


def test_readers_wait_while_rows_are_indexed(store):
    server = store._server
    server.ask("release_collection", server.rows)
    later = threading.Timer(0.5, server.ask, ("load_collection", server.rows))
    later.start()
    assert_same(store.reader().fetch(ROWS.ids), ROWS, rows=False)
    later.join()


def test_an_indexing_that_was_killed_is_made_good_for(store):
    server = store._server
    server.ask("release_collection", server.rows)
    server.ask("drop_index", server.rows, "key0_idx")
    again = MilvusStore.open(store.uri)
    assert_same(everything(again.reader()), ROWS)
    assert (again.reader().search("all", ROWS.keys["all"][:1], 3) >= 0).any()


def test_a_metric_that_milvus_lacks_is_refused(uri):
    schema = Schema({"all": SpaceSchema(4, "manhattan")}, 1)
    with pytest.raises(ValueError, match="does not search by the metric 'manhattan'"):
        MilvusStore.create(uri, schema, [], SUMMARY)
    with pytest.raises(ValueError, match="20000 facts were given per row, and Milvus takes 12287"):
        MilvusStore.create(uri, SCHEMA._replace(n_facts=20_000), [], SUMMARY)


def test_rows_that_are_too_large_are_refused_before_anything_is_written(store):
    largest = replace(some_rows(1, 3, 500), rows=[b"\xff" * 49_149])
    assert_same(store.apply(edit(1, largest), 0).fetch(largest.ids, rows=True), largest)
    larger = replace(largest, rows=[b"\xff" * 49_150])
    with pytest.raises(ValueError, match="takes 49150 bytes, and Milvus takes 49149"):
        store.apply(edit(2, larger), 1)
    assert store.reader().version == 1
    with pytest.raises(ValueError, match="takes 49150 bytes"):
        MilvusStore.create(f"{store.uri}_other", SCHEMA, [ROWS, larger], SUMMARY)
    MilvusStore.create(f"{store.uri}_other", SCHEMA, [ROWS], SUMMARY)._server.drop()


def test_a_summary_of_any_length_comes_back(store):
    long = {"names": ["ä\0\"'\\" * 70_000]}
    assert store.apply(edit(1, summary=long), 0).summary == long
    assert MilvusStore.open(store.uri).reader().summary == long


def test_more_neighbors_than_milvus_finds_are_refused(store, monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 40)
    with pytest.raises(ValueError, match="50 neighbors were asked for, and Milvus finds 31 at"):
        store.reader().search("all", ROWS.keys["all"][:1], 50)


def test_rows_are_written_and_read_in_parts(store, monkeypatch):
    monkeypatch.setattr(server_module, "_REQUEST", 2_000)
    monkeypatch.setattr(server_module, "_WITH_ROWS", 7)
    monkeypatch.setattr(server_module, "_CHUNKS", 2)
    monkeypatch.setattr(server_module, "_CHUNK", 500)
    other = replace(some_rows(30, seed=2), ids=ROWS.ids[:30])
    after = store.apply(edit(1, other, ROWS.ids[40:50], parts={"p": b"x" * 4_000}), 0)
    rows = ROWS.joined([other, ROWS.take(np.r_[30:40, 50:60])])
    assert_same(everything(after), rows)
    assert_same(after.fetch(rows.ids[::-1], rows=True), rows.take(np.arange(50)[::-1]))
    assert store.find(store.lineage, version=1).parts == {"p": b"x" * 4_000}
    assert len(store.history(store.lineage)) == 1
    with pytest.raises(UnknownIdError):
        after.fetch(ROWS.ids)


def test_one_store_is_closed_while_another_is_used(store):
    other = MilvusStore.open(store.uri)
    other.close()
    assert_same(everything(store.reader()), ROWS)
    assert_same(everything(other.reader()), ROWS)


@pytest.mark.parametrize(
    "rest", ["user:secret@localhost:1/db", "localhost:1/a/b", "localhost:1/db?token=secret", "/db"]
)
def test_a_uri_of_another_form_is_refused(rest):
    with pytest.raises(ValueError, match="must be of the form milvus") as seen:
        MilvusStore.open(f"milvus+http://{rest}")
    assert "secret" not in str(seen.value)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(ValueError, match="use letters, digits and _ after the #"):
        MilvusStore.open("milvus+http://localhost:1#a-b")


def test_a_server_that_is_not_there_is_named_without_its_token(monkeypatch, milvus_uri):
    port = free_port()
    monkeypatch.setenv("MILVUS_TOKEN", "root:secret")
    monkeypatch.setattr(server_module, "_CONNECTING", 1.0)
    place = f"milvus\\+http://127.0.0.1:{port}/db#nearwise"
    told = f"could not reach the store at {place}: .*MILVUS_TOKEN"
    with pytest.raises(OSError, match=told) as seen:
        MilvusStore.open(f"milvus+http://127.0.0.1:{port}/db")
    assert "secret" not in str(seen.value)


def test_a_server_that_stopped_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_ANSWERING", 1.0)
    with milvus_server(tmp_path) as uri:
        store = MilvusStore.create(uri, SCHEMA, [ROWS], SUMMARY)
        reader = store.reader()
    with pytest.raises(OSError, match="failed in query"):
        store.reader()
    with pytest.raises(OSError, match="failed in search"):
        reader.search("all", ROWS.keys["all"][:1], 3)
    store.close()


def test_without_pymilvus_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(access, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install nearwise\[milvus\]"):
        MilvusStore.open("milvus+http://localhost:1/db")


@pytest.mark.parametrize("host", ["db.example", "10.0.0.1", "localhost.example"])
def test_a_token_does_not_go_to_another_machine_in_clear(monkeypatch, host):
    pymilvus = pytest.importorskip("pymilvus")
    monkeypatch.setenv("MILVUS_TOKEN", "root:hunter2")
    reached = []
    monkeypatch.setattr(pymilvus, "MilvusClient", lambda **options: reached.append(options))
    with pytest.raises(ValueError, match="in clear") as found:
        server_module.MilvusServer(f"milvus+http://{host}/d").client  # noqa: B018
    assert not reached and "hunter2" not in str(found.value)
    for uri in (f"milvus+https://{host}/d", "milvus+http://127.0.0.1/d", "milvus+http://[::1]"):
        server_module.MilvusServer(uri).client  # noqa: B018
    monkeypatch.delenv("MILVUS_TOKEN")
    server_module.MilvusServer(f"milvus+http://{host}/d").client  # noqa: B018
    assert [bool(options["token"]) for options in reached] == [True, True, True, False]
