"""What engines reach a store with: packages, hosts, and what of them a fork lacks."""

import ipaddress
import os
from importlib import import_module
from typing import Any

from nearwise.memory.gate import StoreError

_EXTRAS = {
    "lance": ("on disk", "disk"),
    "faiss": ("on disk", "disk"),
    "psycopg": ("in PostgreSQL", "postgres"),
    "pgvector.psycopg": ("in PostgreSQL", "postgres"),
}
_NOT_FORKABLE = ("lance",)  # threads that belong to the package, not to what is opened with it
_used_by: dict[str, int] = {}  # process that used such a package first


def package(name: str) -> Any:
    """Import a package that an engine needs.

    ImportError with the extra that brings it; StoreError if this process was forked from one that
    has used it, and it does not survive that.
    """
    try:
        found = import_module(name)
    except ImportError as error:
        where, extra = _EXTRAS[name]
        raise ImportError(
            f'a store {where} needs the extra "{extra}": pip install nearwise[{extra}]'
        ) from error
    if name in _NOT_FORKABLE and _used_by.setdefault(name, os.getpid()) != os.getpid():
        raise _forked(f"the package {name} was used")
    return found


def is_local(host: str) -> bool:
    """Whether a host is this machine: a socket of it, or its loopback address."""
    if host in ("", "localhost") or host[0] in "/@":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OneProcess:
    """Belongs to the process that made it: its threads and connections are not in a fork of it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a fork of the process that made it."""
        return self._process != os.getpid()

    def refuse_fork(self) -> None:
        """Raise a StoreError in a fork."""
        if self.is_forked:
            raise _forked("the store was opened")


def _forked(what: str) -> StoreError:
    return StoreError(
        "forked",
        f"This process was forked after {what}, whose threads and connections it lacks. Open the "
        "model after the fork, in each process and in none before, or start processes by spawn.",
    )
