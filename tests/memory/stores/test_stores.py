"""What every engine promises, on the same rows."""

from dataclasses import replace

import numpy as np
import pytest

from nearwise.memory import StoreError
from nearwise.memory.checks import UnknownIdError
from nearwise.memory.stores import RowReader, RowStore, Schema, SpaceSchema, engine_of
from tests.memory.stores.cases import (
    NOTHING,
    SCHEMA,
    SUMMARY,
    apart,
    assert_same,
    batches,
    edit,
    everything,
    nearest,
    some_rows,
)

ROWS = some_rows(250)


@pytest.fixture
def store(place):
    made = place.create(SCHEMA, batches(ROWS), SUMMARY)
    yield made
    made.close()


def changed(rows, seed=1):
    """Give the same rows other labels, keys, facts and bytes."""
    return replace(some_rows(len(rows), seed), ids=rows.ids)


def assert_finds(reader, rows, k=10, exclude=None):
    """Candidates hold the nearest of the rows, and nothing that is not there."""
    rng = np.random.default_rng(5)
    for name, space in SCHEMA.spaces.items():
        queries = rng.normal(size=(6, space.width)).astype(np.float32)
        if exclude is None:
            queries = np.concatenate([queries, rows.keys[name][:4]])
        else:
            queries = rows.keys[name][np.searchsorted(rows.ids, exclude)]
        found = reader.search(name, queries, k, exclude)
        assert found.dtype == np.int64 and found.shape[0] == len(queries)
        assert np.isin(found[found >= 0], rows.ids).all()
        distances = apart(queries, rows.keys[name], space.metric)
        if exclude is not None:
            assert not (found == exclude[:, None]).any()
            distances[rows.ids[None] == exclude[:, None]] = np.inf
        wanted = min(k, len(rows) - (exclude is not None))
        for i, ids in enumerate(found):
            ids = ids[ids >= 0]
            assert len(set(ids)) == len(ids) >= wanted
            at = np.searchsorted(rows.ids, ids)
            best = nearest(distances[i : i + 1, at], wanted)
            np.testing.assert_allclose(best, nearest(distances[i : i + 1], wanted), atol=1e-6)


def test_a_store_holds_what_it_was_made_of(store):
    assert isinstance(store, RowStore) and isinstance(store.reader(), RowReader)
    assert store.schema == SCHEMA
    assert store.reader().version == 0 and store.reader().summary == SUMMARY
    assert_same(everything(store.reader()), ROWS)
    assert store.history(store.lineage) == []


def test_a_store_that_is_opened_again_is_the_same(store):
    again = engine_of(store.uri).open(store.uri)
    assert (again.schema, again.lineage) == (store.schema, store.lineage)
    assert again.reader().summary == SUMMARY
    assert_same(everything(again.reader()), ROWS)
    assert_finds(again.reader(), ROWS)
    again.close()
    assert_finds(again.reader(), ROWS)  # opened once more by the call
    again.close()


@pytest.mark.parametrize("k", [1, 10, 249, 250, 400])
def test_candidates_hold_the_nearest_rows(store, k):
    assert_finds(store.reader(), ROWS, k)


@pytest.mark.parametrize("k", [1, 36, 249])
def test_a_row_that_is_left_out_is_never_found(store, k):
    assert_finds(store.reader(), ROWS, k, exclude=ROWS.ids[[0, 7, 14, 200]])


def test_no_query_finds_nothing(store):
    for name, space in SCHEMA.spaces.items():
        found = store.reader().search(name, np.empty((0, space.width), np.float32), 3)
        assert len(found) == 0 and found.dtype == np.int64


def test_rows_are_fetched_in_the_order_that_is_asked(store, rng):
    order = rng.permutation(len(ROWS))[:40]
    assert_same(store.reader().fetch(ROWS.ids[order], rows=True), ROWS.take(order))
    assert_same(store.reader().fetch(ROWS.ids[order]), ROWS.take(order), rows=False)
    assert_same(store.reader().fetch(NOTHING, rows=True), ROWS.take(NOTHING))
    assert_same(store.reader().fetch(NOTHING), ROWS.take(NOTHING), rows=False)


def test_an_id_that_is_not_there_is_named(store):
    with pytest.raises(UnknownIdError, match="2 of 3 ids are not remembered, first 99999"):
        store.reader().fetch(np.array([99_999, ROWS.ids[0], 10**12]))


def test_a_change_puts_replaces_and_removes(store):
    new, other = some_rows(30, seed=2, first=1000), changed(ROWS.take(np.arange(20)))
    after = store.apply(edit(1, new, summary={"n": 2}), 0)
    assert after.version == 1 and after.summary == {"n": 2}
    rows = ROWS.joined([ROWS, new])
    assert_same(everything(after), rows)
    assert_finds(after, rows)

    after = store.apply(edit(2, other), 1)
    rows = rows.joined([other, rows.take(np.arange(20, len(rows)))])
    assert_same(everything(after), rows)
    assert_finds(after, rows)

    gone = rows.ids[[1, 5, 100, 260]]
    after = store.apply(edit(3, removed=gone), 2)
    rows = rows.take(~np.isin(rows.ids, gone))
    assert_same(everything(after), rows)
    assert_finds(after, rows)
    assert_finds(after, rows, exclude=rows.ids[[0, 30, 250]])
    assert store.reader() is after
    with pytest.raises(UnknownIdError, match="first"):
        after.fetch(gone)

    back = ROWS.take(np.isin(ROWS.ids, gone[:3]))  # in the change that removes others
    after = store.apply(edit(4, back, rows.ids[:1]), 3)
    rows = rows.joined([back, rows.take(np.arange(1, len(rows)))])
    rows = rows.take(np.argsort(rows.ids))
    assert_same(everything(after), rows)
    assert_finds(after, rows)

    after = store.apply(edit(5, summary={"n": 7}), 4)  # of no rows
    assert after.version == 5 and after.summary == {"n": 7}
    assert_same(everything(after), rows)


def test_a_reader_goes_on_seeing_its_own_version(store):
    before = store.reader()
    store.apply(edit(1, changed(ROWS.take(np.arange(50))), ROWS.ids[60:70], {"n": 2}), 0)
    store.apply(edit(2, some_rows(10, seed=3, first=5000)), 1)
    assert before.version == 0 and before.summary == SUMMARY
    assert_same(everything(before), ROWS)
    assert_finds(before, ROWS)
    assert_same(before.fetch(ROWS.ids[55:75], rows=True), ROWS.take(np.arange(55, 75)))


def test_a_change_from_a_version_that_is_no_longer_the_newest_is_refused(store):
    store.apply(edit(1, removed=ROWS.ids[:1], key="first"), 0)
    with pytest.raises(StoreError, match="is at version 1, and the change was made from 0") as seen:
        store.apply(edit(1, changed(ROWS), key="second"), 0)
    assert seen.value.reason == "changed"
    assert store.reader().version == 1
    assert_same(everything(store.reader()), ROWS.take(np.arange(1, len(ROWS))))
    assert [change.key for change in store.history(store.lineage)] == ["first"]


def test_a_second_process_sees_changes_and_its_own_stale_ones_are_refused(store):
    other = engine_of(store.uri).open(store.uri)
    held = other.reader()
    store.apply(edit(1, removed=ROWS.ids[:1], summary={"n": 3}), 0)
    with pytest.raises(StoreError) as seen:
        other.apply(edit(1, removed=ROWS.ids[1:2]), 0)
    assert seen.value.reason == "changed"
    assert other.reader().version == 1 and other.reader().summary == {"n": 3}
    assert other.reader() is other.reader()
    assert_same(everything(other.reader()), ROWS.take(np.arange(1, len(ROWS))))
    assert_same(everything(held), ROWS)
    other.apply(edit(2, removed=ROWS.ids[1:2]), 1)
    assert store.reader().version == 2
    assert_same(everything(store.reader()), ROWS.take(np.arange(2, len(ROWS))))
    other.close()


def test_changes_are_found_by_version_and_by_key(store):
    parts = {"rows/0": bytes(range(256)), "empty": b"", "large": b"\x01" * 200_000}
    many = {"names": ["ä"] * 30_000}
    first = edit(1, removed=ROWS.ids[:2], key='it\'s "the" %s key', digest="d", parts=parts)
    second = edit(2, some_rows(3, 2, 1000), details=many)
    store.apply(first, 0)
    store.apply(second, 1)
    lineage = store.lineage
    assert store.find(lineage, version=1) == first.change
    assert store.find(lineage, key=first.change.key) == first.change
    assert store.find(lineage, version=2) == second.change
    bare = [replace(first.change, parts={}), second.change]
    assert store.history(lineage) == bare
    assert store.history(lineage, 1) == bare[1:]
    assert store.history(lineage, 0) == []
    assert store.history("0" * 16) == []
    for asked in ({"version": 3}, {"key": "other"}, {"version": 0}):
        with pytest.raises(KeyError):
            store.find(lineage, **asked)
    with pytest.raises(KeyError):
        store.find("0" * 16, version=1)


@pytest.mark.parametrize("keep_removed", [False, True])
def test_a_snapshot_changes_nothing_but_what_is_remembered_of_changes(store, keep_removed):
    parts = {"rows/0": b"of a removed row"}
    store.apply(edit(1, some_rows(20, 2, 1000), summary={"n": 2}), 0)
    store.apply(edit(2, removed=ROWS.ids[:9], key="k", parts=parts, summary={"n": 3}), 1)
    before = store.reader()
    rows = everything(before)
    made = store.snapshot(keep_removed=keep_removed)
    assert made.version == 2 and made.n_rows == len(rows) == 261
    assert made.recall == {"all": 1.0, "some": 1.0}
    for reader in (before, store.reader(), engine_of(store.uri).open(store.uri).reader()):
        assert reader.version == 2 and reader.summary == {"n": 3}
        assert_same(everything(reader), rows)
        assert_finds(reader, rows)
    found = store.find(store.lineage, key="k")
    assert found.parts == (parts if keep_removed else {})
    assert [change.version for change in store.history(store.lineage)] == [1, 2]
    after = store.apply(edit(3, removed=rows.ids[:1]), 2)
    assert_same(everything(after), rows.take(np.arange(1, len(rows))))
    assert store.snapshot().n_rows == 260


def test_a_scan_gives_rows_in_the_order_of_their_ids(store):
    between = some_rows(40, seed=4)
    store.apply(edit(1, between.take(~np.isin(between.ids, ROWS.ids))), 0)
    store.apply(edit(2, some_rows(5, seed=2, first=10**15)), 1)  # far behind the others
    ids = everything(store.reader()).ids
    assert (np.diff(ids) > 0).all()
    assert len(ids) == len(np.union1d(ROWS.ids, between.ids)) + 5


def test_a_store_is_not_made_where_one_is_nor_opened_where_none_is(place, store):
    with pytest.raises(StoreError, match="is there already") as seen:
        place.create(SCHEMA, batches(ROWS), SUMMARY, uri=store.uri)
    assert seen.value.reason == "foreign"
    assert_same(everything(store.reader()), ROWS)
    uri = place.new_uri()
    with pytest.raises(StoreError) as seen:
        engine_of(uri).open(uri)
    assert seen.value.reason == "missing"


def test_what_failed_while_a_store_was_made_leaves_nothing(place):
    def failing():
        yield ROWS
        raise RuntimeError("no more")

    uri = place.new_uri()
    with pytest.raises(RuntimeError, match="no more"):
        place.create(SCHEMA, failing(), SUMMARY, uri=uri)
    with pytest.raises(StoreError):
        engine_of(uri).open(uri)
    assert_same(everything(place.create(SCHEMA, [ROWS], SUMMARY, uri=uri).reader()), ROWS)


def test_a_store_of_no_rows_takes_some(place):
    store = place.create(SCHEMA, [], SUMMARY)
    assert list(store.reader().scan()) == []
    found = store.reader().search("all", np.zeros((2, 4), np.float32), 3)
    assert len(found) == 2 and (found == -1).all()
    assert_same(everything(store.apply(edit(1, ROWS), 0)), ROWS)
    assert_finds(store.reader(), ROWS)
    assert store.snapshot().n_rows == len(ROWS)
    store.apply(edit(2, removed=ROWS.ids), 1)
    assert store.snapshot().n_rows == 0
    assert list(store.reader().scan()) == []
    store.close()


def test_keys_of_one_number_and_rows_without_facts_are_kept(place):
    schema = Schema({"one": SpaceSchema(1, "euclidean"), "by": SpaceSchema(2, "inner_product")}, 0)
    rows = some_rows(60, schema=schema)
    store = place.create(schema, [rows], SUMMARY)
    assert_same(everything(store.reader()), rows)
    for name, space in schema.spaces.items():
        found = store.reader().search(name, rows.keys[name][:5], 3)
        distances = apart(rows.keys[name][:5], rows.keys[name], space.metric)
        for i, ids in enumerate(found):
            at = np.searchsorted(rows.ids, ids[ids >= 0])
            np.testing.assert_allclose(
                nearest(distances[i : i + 1, at], 3), nearest(distances[i : i + 1], 3), atol=1e-6
            )
    store.close()


@pytest.mark.parametrize("uri", ["mysql://localhost/x", "milvus+http://localhost/x", "ftp://x/y"])
def test_a_uri_of_no_engine_is_refused(uri):
    with pytest.raises(ValueError, match=r"names no store\. Use a folder"):
        engine_of(uri)


def test_the_nearest_are_found_behind_many_that_were_removed(store):
    apart_from = apart(ROWS.keys["all"][:1], ROWS.keys["all"], "euclidean")[0]
    gone = np.argsort(apart_from)[:60]
    far = some_rows(200, seed=6, first=5000)
    far = replace(far, keys={name: keys + 100 for name, keys in far.keys.items()})
    store.apply(edit(1, far), 0)
    reader = store.apply(edit(2, removed=ROWS.ids[gone]), 1)
    left = ROWS.take(~np.isin(ROWS.ids, ROWS.ids[gone]))
    found = reader.search("all", ROWS.keys["all"][:1], 100)[0]
    at = np.searchsorted(left.ids, found[np.isin(found, left.ids)])
    distances = apart(ROWS.keys["all"][:1], left.keys["all"], "euclidean")
    np.testing.assert_allclose(nearest(distances[:, at], 100), nearest(distances, 100), atol=1e-6)
