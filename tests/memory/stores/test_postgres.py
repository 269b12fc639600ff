"""What the engine PostgreSQL does beside what all of them promise."""

import secrets

import numpy as np
import pytest

from nearwise.memory import StoreError
from nearwise.memory.stores import postgres as module
from nearwise.memory.stores.postgres import PostgresStore
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


def test_an_error_in_the_middle_of_a_change_undoes_it(uri, monkeypatch):
    rows = some_rows(50)
    store = PostgresStore.create(uri, SCHEMA, [rows], SUMMARY)
    store.apply(edit(1, key="k"), 0)
    with pytest.raises(module._package("psycopg").errors.UniqueViolation):
        store.apply(edit(2, some_rows(5, 2, 1000), rows.ids[:3], key="k"), 1)
    assert store.reader().version == 1
    assert_same(everything(store.reader()), rows)
    store.close()


def test_a_server_that_is_not_there_is_named_without_its_password():
    require("psycopg", "pgvector")
    port = free_port()
    with pytest.raises(OSError, match="could not reach the store at postgresql://localhost/d") as e:
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
