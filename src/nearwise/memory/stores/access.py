"""Access of engines to their packages and hosts, and protection against forks."""

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
_NOT_FORKABLE = ("lance",)  # the package itself has threads, which a fork loses
_used_by: dict[str, int] = {}  # package: id of the first process that used it


def package(name: str) -> Any:
    """Import a package that an engine needs.

    ImportError names the extra to install; StoreError if the package does not survive a fork and
    this process was forked from one that has used it.
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
    """Whether a host is this machine: a local socket or a loopback address."""
    if host in ("", "localhost") or host[0] in "/@":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OneProcess:
    """Object with threads or connections that work only in the process that created it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the creating one."""
        return self._process != os.getpid()

    def refuse_fork(self) -> None:
        """Raise a StoreError in a forked process."""
        if self.is_forked:
            raise _forked("the store was opened")


def _forked(what: str) -> StoreError:
    return StoreError(
        "forked",
        f"This process was forked after {what}, whose threads and connections it lacks. Open the "
        "model after the fork, in each process and in none before, or start processes by spawn.",
    )
