"""What the engine PostgreSQL does beside what all of them promise."""

import secrets
import threading
from dataclasses import replace

import numpy as np
import pytest

from nearwise.memory import StoreError
from nearwise.memory.stores import postgres as module
from nearwise.memory.stores.postgres import PostgresStore
from nearwise.memory.stores.postgres_server import settings
from nearwise.memory.ties import tie_order
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
from tests.memory.stores.servers import free_port, require


@pytest.fixture
def uri(postgres_uri):
    return f"{postgres_uri}#own_{secrets.token_hex(4)}"


def indexes(store):
    text = "SELECT indexname FROM pg_indexes WHERE schemaname = %s AND indexname LIKE '%%hnsw'"
    return len(store._database.run(text, store._database.name).fetchall())


def test_many_rows_are_indexed_and_few_are_searched_exactly(uri, monkeypatch):
    monkeypatch.setattr(module, "AUTO_EXACT_BELOW", 500)
    rows = without_ties(some_rows(2_000))
    store = PostgresStore.create(uri, SCHEMA, batches(rows), SUMMARY)
    assert indexes(store) == 2
    assert recall(store.reader(), rows) > 0.93
    found = store.reader().search("all", rows.keys["all"][:2], 300, rows.ids[:2])
    assert ((found >= 0).sum(1) >= 300).all()
    made = store.snapshot()
    assert made.n_rows == 2_000 and all(0.95 <= share <= 1 for share in made.recall.values())
    store.apply(edit(1, removed=rows.ids[300:]), 0)
    assert store.snapshot().recall == {"all": 1.0, "some": 1.0}
    assert indexes(store) == 0
    assert recall(store.reader(), rows.take(np.arange(300))) == 1
    store.close()


def test_of_equal_rows_those_of_the_lowest_rank_are_found(uri):
    rows = some_rows(400)
    rows = replace(rows, keys={name: np.ones_like(keys) for name, keys in rows.keys.items()})
    store = PostgresStore.create(uri, SCHEMA, [rows], SUMMARY)
    found = store.reader().search("all", rows.keys["all"][:1], 10)[0]
    assert found.tolist() == rows.ids[tie_order(rows.ids)][: len(found)].tolist()
    store.close()


def test_an_error_in_the_middle_of_a_change_undoes_it(uri):
    rows = some_rows(50)
    store = PostgresStore.create(uri, SCHEMA, [rows], SUMMARY)
    store.apply(edit(1, key="k"), 0)
    with pytest.raises(OSError, match="duplicate key"):
        store.apply(edit(2, some_rows(5, 2, 1000), rows.ids[:3], key="k"), 1)
    assert store.reader().version == 1
    assert_same(everything(store.reader()), rows)
    store.close()


def test_a_server_that_is_not_there_is_named_without_its_password():
    require("psycopg", "pgvector")
    port = free_port()
    with pytest.raises(OSError, match=f"the store at postgresql://localhost:{port}/d") as e:
        PostgresStore.open(f"postgresql://user:secret@localhost:{port}/d")
    assert "secret" not in str(e.value)


def test_a_name_that_is_none_is_refused():
    with pytest.raises(ValueError, match="Use letters, digits and _ after the #"):
        PostgresStore.open("postgresql://localhost/d#a-b")


def test_a_store_of_a_newer_nearwise_is_refused(uri):
    store = PostgresStore.create(uri, SCHEMA, [], SUMMARY)
    store._database.run("UPDATE {}.head SET format = 99")
    with pytest.raises(StoreError, match="Upgrade nearwise") as seen:
        PostgresStore.open(uri)
    assert seen.value.reason == "newer"
    store.close()


def test_an_open_version_outlives_one_snapshot_and_says_when_it_is_gone(uri):
    rows = some_rows(60)
    store = PostgresStore.create(uri, SCHEMA, [rows], SUMMARY)
    old = store.reader()
    store.apply(edit(1, replace(rows.take(np.arange(20)), labels=np.full(20, 7))), 0)
    store.snapshot()
    assert_same(everything(old), rows)
    assert recall(old, rows) == 1
    store.apply(edit(2, removed=rows.ids[:5]), 1)
    store.snapshot()
    with pytest.raises(StoreError, match="Open the model again") as found:
        old.search("all", rows.keys["all"][:1], 3)
    assert found.value.reason == "changed"
    store.drop()


def test_keys_of_zeros_are_found_by_cosine(uri):
    rows = some_rows(50)
    keys = {name: part.copy() for name, part in rows.keys.items()}
    for part in keys.values():
        part[:5] = 0
    store = PostgresStore.create(uri, SCHEMA, [replace(rows, keys=keys)], SUMMARY)
    for space, part in keys.items():
        found = store.reader().search(space, part[40:41], 45)
        assert set(rows.ids[:5].tolist()) <= set(found[0].tolist())
    store.drop()
    with pytest.raises(StoreError, match="no store"):
        PostgresStore.open(uri)


def test_a_schema_with_capitals_is_found_again(postgres_uri):
    uri = f"{postgres_uri}#Own_{secrets.token_hex(4)}"
    PostgresStore.create(uri, SCHEMA, [some_rows(5)], SUMMARY).close()
    store = PostgresStore.open(uri)
    assert len(everything(store.reader())) == 5
    store.drop()


def test_threads_that_are_gone_keep_no_connection(uri):
    store = PostgresStore.create(uri, SCHEMA, [some_rows(5)], SUMMARY)
    for _ in range(6):
        thread = threading.Thread(target=store.reader)
        thread.start()
        thread.join()
    assert len(store._database._all) <= 2
    store.drop()


def test_a_change_waits_no_longer_than_it_may(uri):
    store = PostgresStore.create(uri, SCHEMA, [some_rows(5)], SUMMARY)
    other = PostgresStore.open(uri)
    other.wait = 0.2
    with store._database.transaction():
        store._database.run("SELECT 1 FROM {}.head FOR UPDATE")
        with pytest.raises(BlockingIOError, match="not ready in time"):
            other.apply(edit(1), 0)
    assert other.apply(edit(1), 0).version == 1
    other.close()
    store.drop()


STRICT = {"require_auth": "scram-sha-256", "sslmode": "verify-full"}


@pytest.mark.parametrize(
    ("conninfo", "environment", "asked"),
    [
        ("postgresql:///d", {}, {"require_auth": "scram-sha-256,none"}),
        ("postgresql://localhost/d", {}, {"require_auth": "scram-sha-256,none"}),
        ("postgresql://127.0.0.9,[::1]/d", {}, {"require_auth": "scram-sha-256,none"}),
        ("postgresql:///d?host=/run/x", {}, {"require_auth": "scram-sha-256,none"}),
        ("postgresql://db.example/d", {}, STRICT),
        ("postgresql://localhost.example/d", {}, STRICT),
        ("postgresql://localhost,db.example/d", {}, STRICT),
        ("postgresql://localhost/d?hostaddr=10.0.0.1", {}, STRICT),
        ("postgresql:///d?service=s", {}, STRICT),
        ("postgresql:///d", {"PGHOST": "db.example"}, STRICT),
        ("postgresql://localhost/d", {"PGHOSTADDR": "10.0.0.1"}, STRICT),
        ("postgresql://localhost/d", {"PGSERVICE": "s"}, STRICT),
        ("postgresql://h/d?sslmode=require", {}, {"require_auth": "scram-sha-256"}),
        ("postgresql://h/d?require_auth=md5", {"PGSSLMODE": "prefer"}, {}),
        ("postgresql://h/d", {"PGREQUIREAUTH": "gss"}, {"sslmode": "verify-full"}),
    ],
)
def test_what_is_asked_of_a_connection_unless_the_user_says_it(
    monkeypatch, conninfo, environment, asked
):
    require("psycopg")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert settings(conninfo) == asked
    seen = {}

    def connect(given, **options):
        seen.update(options)
        raise psycopg.OperationalError("stop")

    import psycopg

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(OSError, match="stop"):
        PostgresStore.open(conninfo)
    assert seen == {"autocommit": True} | asked
