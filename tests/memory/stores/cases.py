"""Small stores, and the slow way to search them."""

from dataclasses import replace

import numpy as np

from nearwise.memory import Change
from nearwise.memory.stores import Edit, Schema, SpaceSchema, StoredRows

SCHEMA = Schema({"all": SpaceSchema(4, "euclidean"), "some": SpaceSchema(3, "cosine")}, 5)
SUMMARY = {"n": 1, "names": ["ü", None]}
NOTHING = np.empty(0, np.int64)


def some_rows(n, seed=0, first=0, schema=SCHEMA):
    """Random rows with ids that have gaps, some of them duplicates, on a lattice."""
    rng = np.random.default_rng(seed)
    ids = first + np.sort(rng.choice(3 * n, n, replace=False))
    keys = {
        name: rng.integers(-3, 4, (n, space.width)).astype(np.float32) + np.float32(0.25)
        for name, space in schema.spaces.items()
    }
    for part in keys.values():
        part[::7] = part[:1]
    return StoredRows(
        ids.astype(np.int64),
        rng.integers(0, 3, n),
        rng.random(n).astype(np.float32),
        keys,
        rng.normal(size=(n, schema.n_facts)).astype(np.float32),
        [bytes(rng.integers(0, 256, rng.integers(1, 40), dtype=np.uint8)) for _ in range(n)],
    )


def batches(rows, size=100):
    """Give rows in parts."""
    for start in range(0, len(rows), size):
        yield rows.take(np.arange(start, min(start + size, len(rows))))


def assert_same(found, expected, *, rows=True):
    """Compare all that is kept of rows."""
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.facts, expected.facts)
    assert list(found.keys) == list(expected.keys)
    for name, keys in expected.keys.items():
        assert found.keys[name].dtype == np.float32
        np.testing.assert_array_equal(found.keys[name], keys)
    assert found.ids.dtype == found.labels.dtype == np.int64
    assert found.rows == (expected.rows if rows else None)


def everything(reader):
    """Read all rows of a version."""
    return StoredRows.joined(list(reader.scan()))


def apart(query, keys, metric):
    """Distances, (n_queries, n_rows), in float64."""
    query, keys = query.astype(float), keys.astype(float)
    if metric == "euclidean":
        return np.linalg.norm(query[:, None] - keys[None], axis=2)
    if metric == "inner_product":
        return -query @ keys.T
    assert metric == "cosine"
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (query, keys)]
    return 1 - unit[0] @ unit[1].T


def nearest(distances, k):
    """The k smallest of each row, in order."""
    return np.sort(distances, axis=1)[:, :k]


def edit(version, put=None, removed=(), summary=SUMMARY, schema=SCHEMA, **fields):
    """Describe a change."""
    put = some_rows(0, schema=schema) if put is None else put
    ids = tuple(map(int, put.ids)) + tuple(map(int, removed))
    known = {"kind": "remove" if len(removed) else "add", "details": {"of": version}}
    change = Change(version, ids=ids, **known | fields)
    return Edit(change, summary, put, np.array(removed, np.int64))


def without_ties(rows, seed=0):
    """Give the same rows other keys, no two of them alike."""
    rng = np.random.default_rng(seed)
    keys = {name: rng.normal(size=part.shape).astype("f4") for name, part in rows.keys.items()}
    return replace(rows, keys=keys)


def recall(reader, rows, k=10):
    """Share of the distances of the true nearest that candidates reach, over both spaces."""
    found = []
    for name, space in SCHEMA.spaces.items():
        queries = rows.keys[name][:100]
        distances = apart(queries, rows.keys[name], space.metric)
        for i, ids in enumerate(reader.search(name, queries, k)):
            at = np.searchsorted(rows.ids, ids[np.isin(ids, rows.ids)])
            true, best = nearest(distances[i : i + 1], k), nearest(distances[i : i + 1, at], k)
            found.append((best <= true[:, : best.shape[1]] + 1e-6).sum() / k)
    return np.mean(found)
