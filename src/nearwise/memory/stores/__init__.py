"""Row stores for memories larger than RAM: a folder on disk, PostgreSQL."""

from importlib import import_module

from nearwise.memory.stores.protocol import (
    Edit,
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
    "RowReader",
    "RowStore",
    "Schema",
    "Snapshot",
    "SpaceSchema",
    "StoredRows",
    "Verified",
    "engine_of",
]


def engine_of(uri: str) -> type[RowStore]:
    """Return the engine class of a URI.

    "postgresql://..." means PostgreSQL, a path means a folder on disk.
    """
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme in ("postgresql", "postgres"):
        name = "postgres", "PostgresStore"
    elif not scheme:
        name = "disk", "DiskStore"
    else:
        raise ValueError(
            f"A URI of the kind {scheme}:// names no store. Use a folder, or "
            "postgresql://HOST/DATABASE."
        )
    module = import_module(f"nearwise.memory.stores.{name[0]}")
    engine: type[RowStore] = getattr(module, name[1])
    return engine
