"""Access keys of a service, with the scopes read, write and admin."""

import fcntl
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nearwise.safe_files import write_whole

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each scope includes the earlier ones
_NAME = r"[\w.@-]{1,64}"


class StoredKey(BaseModel):
    """One entry of a keys file: the hash of a key, never the key itself."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=f"^{_NAME}$")
    scope: Scope
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


_KEYS = TypeAdapter(list[StoredKey])


class Holder(NamedTuple):
    """Holder of a key: name and scope."""

    name: str
    scope: Scope

    def may(self, scope: Scope) -> bool:
        """Whether the holder's scope includes `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


ANYONE = Holder("", "admin")
"""Holder of every request to a service without keys."""


def read_keys(path: Path) -> list[StoredKey]:
    """Read a keys file.

    Raises
    ------
    ValueError
        If the content is invalid, there is no key, or a name occurs twice.
    OSError
        If the file cannot be read.
    """
    try:
        keys = _KEYS.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(
            f"{path} is not a keys file ({where}: {first['msg']}). Make one with 'nearwise key "
            f"NAME --keys {path}'."
        ) from None
    names = [key.name for key in keys]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not keys:
        problem = f"two keys are called {twice[0]!r}" if twice else "it holds no key"
        raise ValueError(f"{path}: {problem}. Edit it, or make a key with 'nearwise key'.")
    return keys


def holder_of(key: str, keys: Sequence[StoredKey]) -> Holder | None:
    """Return the holder of a key, or None; takes equally long for any key."""
    digest = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    found = None
    for one in keys:
        if hmac.compare_digest(one.sha256, digest):
            found = Holder(one.name, one.scope)
    return found


def make_key(path: Path, name: str, scope: Scope) -> str:
    """Make a key, store its SHA-256 in a keys file, and return the key.

    Raises
    ------
    ValueError
        If the name is taken or not allowed, or the content of the file is invalid.
    OSError
        If the file cannot be written.
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{name!r} is not a name for a key. Use up to 64 letters, digits and . _ - @ "
            "characters."
        )
    with _alone_in(path.absolute().parent):
        keys = read_keys(path) if path.exists() else []
        if name in [key.name for key in keys]:
            raise ValueError(
                f"{path} has a key called {name!r}. Take another name, or delete that."
            )
        key = f"nw_{secrets.token_urlsafe(32)}"
        keys.append(StoredKey(name=name, scope=scope, sha256=sha256(key.encode()).hexdigest()))
        content = json.dumps([one.model_dump() for one in keys], indent=1) + "\n"
        write_whole(path, content.encode())
        return key


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process makes keys in a folder; no lock file is left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
