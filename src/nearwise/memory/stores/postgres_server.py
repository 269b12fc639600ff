"""Connections to one schema of a PostgreSQL database."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from nearwise.memory.stores.access import OneProcess, is_local, package

_NAME = "nearwise"  # of the schema, unless the URI's fragment names another
_LONGEST = 63  # letters of a name in PostgreSQL
_PORT = "5432"
# Passwords are never sent in clear text or in a form that can be guessed from.
_LOCALLY = {"require_auth": "scram-sha-256,none"}
_ELSEWHERE = {"require_auth": "scram-sha-256", "sslmode": "verify-full"}
_VARIABLES = {"require_auth": "PGREQUIREAUTH", "sslmode": "PGSSLMODE"}


class PostgresServer(OneProcess):
    """Connections to one schema of a database, one per thread."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self._conninfo, self.name = _split(uri)
        self.place = place_of(uri)
        self._settings = settings(self._conninfo)
        self._local = threading.local()
        self._all: list[tuple[threading.Thread, Any]] = []

    @property
    def connection(self) -> Any:
        """Connection of this thread, in autocommit mode."""
        self.refuse_fork()
        found = getattr(self._local, "connection", None)
        if found is None or found.closed:
            pgvector = package("pgvector.psycopg")
            with self.explained(self._asked()):
                connect = package("psycopg").connect
                found = connect(self._conninfo, autocommit=True, **self._settings)
                there = "SELECT 1 FROM pg_extension WHERE extname = 'vector'"
                if found.execute(there).fetchone() is None:
                    found.execute("CREATE EXTENSION vector")
                pgvector.register_vector(found)
            self._local.connection = found
            for _, idle in [one for one in self._all if not one[0].is_alive()]:
                idle.close()
            living = [one for one in self._all if one[0].is_alive()]
            self._all = [*living, (threading.current_thread(), found)]
        return found

    @contextlib.contextmanager
    def explained(self, hint: str = "") -> Iterator[None]:
        """Raise errors of the server or the connection as OSError."""
        try:
            yield
        except package("psycopg").errors.LockNotAvailable as error:
            raise BlockingIOError(
                "another process is changing the store, and was not ready in time. Nothing was "
                "changed; try again when it has finished."
            ) from error
        except package("psycopg").Error as error:
            raise OSError(
                f"the store at {self.place} could not be used: {str(error).strip()}. Check "
                f"the URI, that the server runs, and that it has the extension pgvector.{hint}"
            ) from error

    def _asked(self) -> str:
        asked = " and ".join(f"{name}={value}" for name, value in self._settings.items())
        return f" The connection asked for {asked}; your URI may name another." if asked else ""

    def run(self, text: str, *values: Any, **options: Any) -> Any:
        """Run one statement; {} in it is replaced by the schema's name."""
        connection = self.connection
        with self.explained():
            return connection.execute(text.replace("{}", f'"{self.name}"'), values, **options)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run statements in one transaction."""
        with self.explained(), self.connection.transaction():
            yield

    def close(self) -> None:
        """Close the connections of all threads, except in a fork: there they are the parent's."""
        while self._all and not self.is_forked:
            self._all.pop()[1].close()


def place_of(uri: str) -> str:
    """Return a URI without user and settings; see `RowStore.located`."""
    conninfo, name = _split(uri)
    said = _parsed(conninfo)
    hosts = (said.get("host") or said.get("hostaddr") or "").split(",")
    ports = said.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        raise ValueError(f"The URI of the store names {len(hosts)} hosts and {len(ports)} ports.")
    at = ",".join(map(_netloc, hosts, ports))
    return f"postgresql://{at}/{quote(said.get('dbname', ''), safe='')}#{name}"


def _split(uri: str) -> tuple[str, str]:
    """Split a URI into the part for libpq and the name of the schema."""
    conninfo, _, name = uri.partition("#")
    name = name or _NAME
    if not name.isidentifier() or not name.isascii() or len(name) > _LONGEST:
        raise ValueError(
            f"The store is to be in the schema {name!r}. Use letters, digits and _ after "
            f"the # of the URI, at most {_LONGEST}."
        )
    return conninfo, name


def _parsed(conninfo: str) -> dict[str, str]:
    psycopg = package("psycopg")
    try:
        return {name: str(v) for name, v in psycopg.conninfo.conninfo_to_dict(conninfo).items()}
    except psycopg.Error as error:
        raise ValueError(
            f"The URI of the store is none that PostgreSQL takes: {str(error).strip()}. Write "
            "postgresql://USER@HOST/DATABASE#SCHEMA."
        ) from None  # it may show a password


def _netloc(host: str, port: str) -> str:
    shown = f"[{host}]" if ":" in host else quote(host.lower() if host[:1] != "/" else host, "")
    return shown if port in ("", _PORT) else f"{shown}:{port}"


def settings(conninfo: str) -> dict[str, str]:
    """Return security settings for options that neither the URI nor the environment sets.

    On this machine no password is sent in clear text; to another one passwords are sent only by
    SCRAM, and by TLS to a server with a verified certificate.
    """
    said = _parsed(conninfo)
    environment = os.environ
    hosts = (
        said.get("hostaddr")
        or environment.get("PGHOSTADDR")
        or said.get("host")
        or environment.get("PGHOST", "")
    ).split(",")
    named = "service" in said or "PGSERVICE" in environment  # it may name any host
    asked = _LOCALLY if not named and all(map(is_local, hosts)) else _ELSEWHERE
    return {
        name: value
        for name, value in asked.items()
        if name not in said and _VARIABLES[name] not in environment
    }
