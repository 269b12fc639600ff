"""Model folders from elsewhere, made to do harm: every command refuses them, or they are sound.

No command may end by a signal, hang, connect to anything, or change a file outside the folder; and
those that only read change none inside.
"""

import hashlib
import io
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nearwise.estimators import LiveModel
from nearwise.memory import JOURNAL
from nearwise.memory.journal import _checksum
from nearwise.memory.store import MANIFEST
from tests.estimators.cases import CHEAP, attn_knn
from tests.store.folders import small_table
from tests.store.hostile.open_folders import COMMANDS

VICTIM = "victim"  # a file of the user, beside the folder


# --- mutations: each takes the folder, and a file of the user outside it --------------------------


def beside(folder, ending):
    return folder / f"{JOURNAL}{ending}"


def names_a_super_journal(folder, victim, *, wal=True):
    """A rollback journal that SQLite plays back, and that names a file to delete then."""
    base = (folder / JOURNAL).read_bytes()
    (page,), (n_pages,) = struct.unpack(">H", base[16:18]), struct.unpack(">I", base[28:32])
    if not wal:
        (folder / JOURNAL).write_bytes(base[:18] + b"\1\1" + base[20:])
    name, magic = str(victim).encode(), bytes.fromhex("d9d505f920a163d7")
    header = (magic + struct.pack(">5I", 0, 1, n_pages, 512, page)).ljust(512, b"\0")
    end = struct.pack(">II", len(name), sum(name)) + magic
    content = header + struct.pack(">I", 2**30 // page + 1) + name + end
    beside(folder, "-journal").write_bytes(content)


def link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def fifo(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def bound(path):
    path.unlink(missing_ok=True)
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's path may have about 100 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


def subfolder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


def write(path, content):
    path.write_bytes(content)


def sparse(path, size=2**42):
    with path.open("r+b" if path.exists() else "xb") as file:
        file.truncate(size)


def sql(folder, *statements):
    """Change the journal, and seal each row again with the right checksum."""
    connection = sqlite3.connect(folder / JOURNAL, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    for statement, *values in statements:
        connection.execute(statement, values)
    for table, columns, key in (
        ("journal", "lineage, folded", "rowid"),
        ("changes", "version, time, kind, ids, details, key, digest", "version"),
        ("parts", "version, name, number, content", "rowid"),
    ):
        for row, *values in connection.execute(f"SELECT {key}, {columns} FROM {table}").fetchall():
            new = _checksum(*values), row
            connection.execute(f"UPDATE {table} SET checksum = ? WHERE {key} = ?", new)
    connection.close()
    for ending in ("-wal", "-shm"):
        beside(folder, ending).unlink(missing_ok=True)


def statement(text, *values):
    return lambda folder, victim: sql(folder, (text, *values))


def part_of_add(change):
    """Replace the rows of the addition, as Arrow bytes."""

    def mutate(folder, victim):
        connection = sqlite3.connect(folder / JOURNAL)
        query = "SELECT content FROM parts WHERE name = 'rows/0' AND version = 1"
        content = connection.execute(query).fetchone()[0]
        connection.close()
        where = "name = 'rows/0' AND version = 1"
        sql(folder, (f"UPDATE parts SET content = ? WHERE {where}", change(content)))

    return mutate


def text_behind_its_end(content):
    offsets = struct.pack("<3q", 0, 4, 8)
    assert offsets in content
    return content.replace(offsets, struct.pack("<3q", 0, 2**30, 2**30 + 4))


def rows_of_nothing(content):
    sink, table = io.BytesIO(), pa.table({"town": pa.nulls(2**20)})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return sink.getvalue()


def as_lists(content):
    table = pa.ipc.open_stream(content).read_all()
    sink, odd = io.BytesIO(), pa.array([[1]] * table.num_rows)
    table = table.set_column(0, table.schema.names[0], odd)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return sink.getvalue()


def log_of_another(folder, victim):
    """A log with pages of another database, and checksums that are right."""
    other = sqlite3.connect(victim.parent / "other", isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("CREATE TABLE other (content)")
    other.execute("INSERT INTO other VALUES (zeroblob(100000))")
    shutil.copy(victim.parent / "other-wal", beside(folder, "-wal"))
    other.close()
    (victim.parent / "other").unlink()


def manifest(change):
    def mutate(folder, victim):
        found = json.loads((folder / MANIFEST).read_text())
        change(found, folder, victim)
        (folder / MANIFEST).write_text(json.dumps(found))

    return mutate


def entry(part, file=None, **values):
    def change(found, folder, victim):
        found["files"][part] |= values | ({} if file is None else {"file": file(victim)})

    return manifest(change)


def sealed(part, content):
    """Other bytes in a part, with their size and checksum in the manifest."""

    def change(found, folder, victim):
        described, new = found["files"][part], content(folder / found["files"][part]["file"])
        (folder / described["file"]).write_bytes(new)
        described |= {"size": len(new), "sha256": hashlib.sha256(new).hexdigest()}

    return manifest(change)


def part(folder, stem):
    return next(folder.glob(f"{stem}-*"))


def huge_part(found, folder, victim):
    found["files"]["tensors"]["size"] = 2**43
    sparse(part(folder, "tensors"), 2**43)


def harmless(folder, victim):
    for name in (".DS_Store", "README.md", "Thumbs.db"):
        (folder / name).write_bytes(b"x")
    (folder / "__MACOSX").mkdir()
    (folder / "of the user").symlink_to(victim)


def hard_link(folder, victim):
    shutil.copy(folder / JOURNAL, victim)
    (folder / JOURNAL).unlink()
    os.link(victim, folder / JOURNAL)


def journal_elsewhere(folder, victim):
    shutil.copy(folder / JOURNAL, victim)
    link(folder / JOURNAL, victim)


DEEP = "[" * 100_000
# Which commands may end well; "" where none may.
READ = " ".join(COMMANDS[:-1])
ALL = " ".join(COMMANDS)
MUTATIONS = {
    "as it was saved": (lambda f, v: None, ALL),
    "a rollback journal that names a file": (names_a_super_journal, ""),
    "one beside a journal without a log": (lambda f, v: names_a_super_journal(f, v, wal=False), ""),
    "an empty rollback journal": (lambda f, v: write(beside(f, "-journal"), b""), ""),
    "a rollback journal that is a pipe": (lambda f, v: fifo(beside(f, "-journal")), ""),
    "a rollback journal that is a link": (lambda f, v: link(beside(f, "-journal"), v), ""),
    "a rollback journal that is a folder": (lambda f, v: subfolder(beside(f, "-journal")), ""),
    "a rollback journal and no journal": (
        lambda f, v: (write(beside(f, "-journal"), b"x"), (f / JOURNAL).unlink()), "",
    ),
    "a log that is a link": (lambda f, v: link(beside(f, "-wal"), v), ""),
    "a log that is a pipe": (lambda f, v: fifo(beside(f, "-wal")), ""),
    "a log that is a folder": (lambda f, v: subfolder(beside(f, "-wal")), ""),
    "a log that is a device": (lambda f, v: link(beside(f, "-wal"), "/dev/zero"), ""),
    "a log of noise": (lambda f, v: write(beside(f, "-wal"), bytes(range(256)) * 99), ALL),
    "a log larger than any disk": (lambda f, v: sparse(beside(f, "-wal")), ALL),
    "a log of another database": (log_of_another, ""),
    "a log and no journal": (
        lambda f, v: (write(beside(f, "-wal"), b"x" * 99), (f / JOURNAL).unlink()), "",
    ),
    "an index that is a link": (lambda f, v: link(beside(f, "-shm"), v), ""),
    "an index that is a pipe": (lambda f, v: fifo(beside(f, "-shm")), ""),
    "an index that is a device": (lambda f, v: link(beside(f, "-shm"), "/dev/zero"), ""),
    "an index of noise": (lambda f, v: write(beside(f, "-shm"), bytes(range(256)) * 128), ALL),
    "a journal elsewhere": (journal_elsewhere, ""),
    "a journal with a second name": (hard_link, READ),
    "a journal that is a pipe": (lambda f, v: fifo(f / JOURNAL), ""),
    "a journal that is a folder": (lambda f, v: subfolder(f / JOURNAL), ""),
    "a journal that is a socket": (lambda f, v: bound(f / JOURNAL), ""),
    "a journal that is a device": (lambda f, v: link(f / JOURNAL, "/dev/zero"), ""),
    "a journal larger than any disk": (lambda f, v: sparse(f / JOURNAL), ALL),
    "no journal": (lambda f, v: (f / JOURNAL).unlink(), ""),
    "an empty journal": (lambda f, v: write(f / JOURNAL, b""), ""),
    "half a journal": (lambda f, v: os.truncate(f / JOURNAL, 9_000), ""),
    "a trigger": (
        statement(
            "CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM changes; END"
        ),
        "",
    ),
    "a view": (statement("CREATE VIEW v AS SELECT * FROM parts"), ""),
    "a table that attaches": (
        lambda f, v: sql(
            f,
            (
                "INSERT INTO sqlite_schema VALUES ('trigger', 't', 'changes', 0, ?)",
                f"CREATE TRIGGER t AFTER INSERT ON changes BEGIN ATTACH '{v}' AS v; END",
            ),
        ),
        "",
    ),
    "a virtual table": (statement("CREATE VIRTUAL TABLE t USING fts5(a)"), ""),
    "a generated column": (
        statement("ALTER TABLE parts ADD COLUMN g AS (hex(zeroblob(1000)))"), "",
    ),
    "an index on an expression": (statement("CREATE INDEX i ON parts (length(name))"), ""),
    "a format of the future": (statement("PRAGMA user_version = 99"), ""),
    "a version of 2^62": (statement("UPDATE changes SET version = 4611686018427387904 "
                                    "WHERE version = 2"), "history"),
    "an unknown kind of change": (statement("UPDATE changes SET kind = 'os.system'"), None),
    "a kind that is no text": (statement("UPDATE changes SET kind = x'00ff'"), ""),
    "a time that is no text": (statement("UPDATE changes SET time = x'00ff'"), ""),
    "ids that are none": (statement("UPDATE changes SET ids = '5'"), ""),
    "ids that are text": (statement("UPDATE changes SET ids = '[\"a\"]'"), ""),
    "ids of other rows": (statement("UPDATE changes SET ids = '[7777777777777]'"), None),
    "details without end": (statement("UPDATE changes SET details = ?", DEEP), ""),
    "details that are a list": (statement("UPDATE changes SET details = '[]'"), ""),
    "details that lack all": (statement("UPDATE changes SET details = '{}'"), None),
    "no parts": (statement("DELETE FROM parts"), None),
    "parts that are text": (statement("UPDATE parts SET content = 'text'"), None),
    "a folder version of text": (statement("UPDATE journal SET folded = 'x'"), ""),
    "text behind its buffer": (part_of_add(text_behind_its_end), None),
    "a million rows of nothing": (part_of_add(rows_of_nothing), None),
    "rows of lists": (part_of_add(as_lists), None),
    "rows that are noise": (part_of_add(lambda content: bytes(range(256)) * 9), None),
    "rows of two gigabytes": (
        part_of_add(lambda content: b"\xff\xff\xff\xff\xff\xff\xff\x7f" + content), None,
    ),
    "labels without end": (
        statement("UPDATE parts SET content = ? WHERE name = 'labels'", DEEP.encode()), None,
    ),
    "a manifest that is a pipe": (lambda f, v: fifo(f / MANIFEST), ""),
    "a manifest that is a device": (lambda f, v: link(f / MANIFEST, "/dev/zero"), ""),
    "a manifest without end": (lambda f, v: write(f / MANIFEST, DEEP.encode()), ""),
    "a manifest larger than any disk": (lambda f, v: sparse(f / MANIFEST), ""),
    "a manifest that names a file elsewhere": (entry("tensors", lambda v: f"../{v.name}"), ""),
    "a manifest that names a file by its path": (entry("tensors", str), ""),
    "a manifest whose journal is of text": (
        manifest(lambda m, f, v: m["journal"].update(version="x")), "",
    ),
    "a part that is a link": (lambda f, v: link(part(f, "tensors"), v), ""),
    "a part that is a pipe": (lambda f, v: fifo(part(f, "tensors")), ""),
    "a part that is a folder": (lambda f, v: subfolder(part(f, "meta")), ""),
    "a part larger than any memory": (manifest(huge_part), ""),
    "JSON without end": (sealed("meta", lambda path: DEEP.encode()), ""),
    "tensors with a header without end": (
        sealed("tensors", lambda path: struct.pack("<Q", 2**60) + b"{}"), "",
    ),
    "tensors that are elsewhere in the file": (
        sealed(
            "tensors",
            lambda path: path.read_bytes().replace(b'"data_offsets":[0,', b'"data_offsets":[9,'),
        ),
        "",
    ),
    "files of others": (harmless, ALL),
    "a link in place of a store": (
        lambda f, v: (f / "rows").symlink_to(v.parent, target_is_directory=True), ALL,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """What every command said of every folder; outside the folders, and what is there now."""
    root = tmp_path_factory.mktemp("hostile")
    data, base = root / "new.csv", root / "base"
    attn_knn(**CHEAP).fit(*small_table()).save(base)
    with LiveModel(base) as live:
        table = pd.DataFrame({"age": [0.5, 1.0], "income": [1.0, 2.0], "town": ["Rome", "Oslo"]})
        live.add(table, np.array(["yes", "no"]))
        live.remove([3])
    table.assign(label=["yes", "no"]).to_csv(data, index=False)
    folders, before = {}, {}
    for number, (name, (mutate, _)) in enumerate(MUTATIONS.items()):
        place = root / str(number)
        (place / "inside").mkdir(parents=True)
        (place / VICTIM).write_bytes(b"of the user")
        folder = folders[name] = shutil.copytree(base, place / "inside" / "m")
        mutate(folder, place / VICTIM)
        before[name] = looks(place / VICTIM)
    runner = Path(__file__).with_name("open_folders.py")
    done = subprocess.run(
        [sys.executable, runner, data, *folders.values()],
        capture_output=True, text=True, timeout=3_000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    found = map(json.loads, done.stdout.splitlines())
    after = {name: looks(f.parent.parent / VICTIM) for name, f in folders.items()}
    return dict(zip(folders, found, strict=True)), before, after


def looks(path):
    return (path.read_bytes(), path.stat().st_mtime_ns) if path.exists() else None


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_hostile_folder_is_refused_or_sound_and_does_no_harm(opened, name):
    found, before, after = opened
    answers = {one["command"]: one for one in found[name]["found"]}
    assert found[name]["status"] == 0 and list(answers) == list(COMMANDS), answers
    assert after[name] == before[name] and not any(one["connections"] for one in answers.values())
    allowed = MUTATIONS[name][1]
    for command, answer in answers.items():
        assert answer["code"] in (0, 2), answer
        assert "fault of nearwise" not in answer["said"], answer
        assert not answer["changed"] or command == COMMANDS[-1], answer
        if allowed is not None:
            assert (answer["code"] == 0) is (command in allowed.split()), answer
