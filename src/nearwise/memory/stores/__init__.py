"""Stores of remembered rows that outgrow memory: a folder on disk, PostgreSQL, Milvus."""

from importlib import import_module

from nearwise.memory.stores.protocol import (
    Edit,
    Engine,
    RowReader,
    RowStore,
    Schema,
    Snapshot,
    SpaceSchema,
    StoredRows,
    Verified,
)

__all__ = [
    "Edit",
    "Engine",
    "RowReader",
    "RowStore",
    "Schema",
    "Snapshot",
    "SpaceSchema",
    "StoredRows",
    "Verified",
    "engine_of",
]


def engine_of(uri: str) -> type[Engine]:
    """Name the engine that a URI is for.

    "postgresql://..." is PostgreSQL, "milvus+http(s)://..." Milvus, a path a folder on disk.
    """
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme in ("postgresql", "postgres"):
        name = "postgres", "PostgresStore"
    elif scheme in ("milvus+http", "milvus+https"):
        name = "milvus", "MilvusStore"
    elif not scheme:
        name = "disk", "DiskStore"
    else:
        raise ValueError(
            f"A URI of the kind {scheme}:// names no store. Use a folder, "
            "postgresql://HOST/DATABASE or "
            "milvus+http://HOST:PORT/DATABASE."
        )
    module = import_module(f"nearwise.memory.stores.{name[0]}")
    engine: type[Engine] = getattr(module, name[1])
    return engine
