"""Engines for the tests of stores."""

from tests.memory.stores.servers import place, postgres_uri

__all__ = ["place", "postgres_uri"]
