"""Engines for the tests of stores."""

from tests.memory.stores.servers import milvus_uri, place, postgres_uri

__all__ = ["milvus_uri", "place", "postgres_uri"]
