"""The journal of a folder: what is in it survives, and what is not a journal is refused."""

import multiprocessing
import os
import random
import sqlite3

import pytest

from nearwise.memory import JOURNAL, Change, Journal, StoreError

LINEAGE, OTHER = "a" * 16, "b" * 16


def change(version, **fields):
    known = {"kind": "add", "ids": (version,), "details": {"n": version}}
    return Change(version, **known | {"parts": {"rows/0": bytes([version])}} | fields)


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path) as opened:
        yield opened


def filled(journal, n=3):
    for version in range(1, n + 1):
        journal.append(LINEAGE, 0, change(version))
    return journal


def test_no_file_is_made_before_the_first_change(journal, tmp_path):
    assert journal.state() is None
    assert journal.since(LINEAGE, 0) == journal.history(LINEAGE) == []
    journal.fold(LINEAGE, 3)
    assert os.listdir(tmp_path) == []


def test_a_change_is_read_back_as_it_was_written(journal, tmp_path):
    first = change(1, key="k", digest="d", parts={"a": b"\x00\xff", "b": b""})
    journal.append(LINEAGE, 0, first)
    with Journal(tmp_path) as again:
        assert again.since(LINEAGE, 0) == [first]
        assert again.state() == (LINEAGE, 0, 1)
        assert again.find(LINEAGE, version=1) == again.find(LINEAGE, key="k") == first
        with pytest.raises(KeyError):
            again.find(LINEAGE, key="another")


def test_folding_in_forgets_what_changes_were_made_of_and_nothing_else(journal):
    filled(journal).fold(LINEAGE, 2)
    assert [c.version for c in journal.since(LINEAGE, 2)] == [3]
    assert journal.since(LINEAGE, 2)[0].parts
    assert [c.ids for c in journal.history(LINEAGE)] == [(1,), (2,), (3,)]
    assert not journal.find(LINEAGE, version=2).parts
    with pytest.raises(StoreError, match="Read it again") as caught:
        journal.since(LINEAGE, 1)
    assert caught.value.reason == "changed"
    journal.fold(LINEAGE, 1)
    assert journal.state() == (LINEAGE, 2, 3)


def test_the_newest_changes_alone_are_read_in_order(journal):
    filled(journal)
    assert [c.version for c in journal.history(LINEAGE, last=2)] == [2, 3]
    assert journal.history(LINEAGE, last=9) == journal.history(LINEAGE)


def test_folding_in_may_keep_one_kind_whole(journal):
    journal.append(LINEAGE, 0, change(1, kind="remove"))
    journal.append(LINEAGE, 0, change(2))
    journal.fold(LINEAGE, 2, keep="remove")
    assert [bool(journal.find(LINEAGE, version=v).parts) for v in (1, 2)] == [True, False]
    journal.fold(LINEAGE, 2)
    assert not journal.find(LINEAGE, version=1).parts


def test_folded_content_is_gone_from_the_file(journal, tmp_path):
    secret = b"4111 1111 1111 1111" * 400
    journal.append(LINEAGE, 0, change(1, parts={"rows/0": secret}))
    journal.fold(LINEAGE, 1)
    journal.close()
    assert not any(b"4111 1111" in file.read_bytes() for file in tmp_path.iterdir())


def test_another_lineage_sees_none_of_it_and_then_takes_over(journal):
    filled(journal)
    assert journal.since(OTHER, 0) == journal.history(OTHER) == []
    journal.append(OTHER, 0, change(1, ids=(9,)))
    assert [c.ids for c in journal.since(OTHER, 0)] == [(9,)]
    assert journal.since(LINEAGE, 0) == []


def test_a_version_or_a_key_is_never_given_twice(journal):
    journal.append(LINEAGE, 0, change(1, key="k"))
    for repeated in (change(1), change(2, key="k")):
        with pytest.raises(StoreError):
            journal.append(LINEAGE, 0, repeated)
    assert [c.version for c in journal.since(LINEAGE, 0)] == [1]


FOREIGN = [
    "CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM changes; END",
    "CREATE VIEW v AS SELECT * FROM changes",
    "CREATE TABLE other (a)",
    "DROP TABLE parts",
    "DELETE FROM journal",
    "UPDATE changes SET ids = '[7]'",
    "UPDATE changes SET time = 3",
    "UPDATE parts SET content = x'00'",
    "UPDATE journal SET folded = 0, lineage = 'x'",
]


@pytest.mark.parametrize(
    ("statement", "reason", "message"),
    [
        *((statement, "torn", "damaged") for statement in FOREIGN),
        ("PRAGMA user_version = 2", "newer", "Upgrade nearwise"),
        ("DELETE FROM changes WHERE version = 2", "torn", "not all changes from 1 to 3 are there"),
    ],
)
def test_what_nearwise_does_not_write_is_refused(journal, tmp_path, statement, reason, message):
    filled(journal).close()
    with sqlite3.connect(tmp_path / JOURNAL) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(StoreError, match=message) as caught:
        journal.since(LINEAGE, 0)
    assert caught.value.reason == reason


def test_damage_anywhere_is_an_error_or_harmless(journal, tmp_path):
    filled(journal, 20)
    expected = journal.since(LINEAGE, 0)
    journal.close()
    content, refused, harmless = (tmp_path / JOURNAL).read_bytes(), 0, 0
    draws = random.Random(0)
    for at in range(0, len(content), 397):
        damaged = bytearray(content)
        damaged[at : at + 20] = draws.randbytes(len(damaged[at : at + 20]))
        (tmp_path / JOURNAL).write_bytes(bytes(damaged))
        try:
            assert journal.since(LINEAGE, 0) == expected
            harmless += 1
        except StoreError:
            refused += 1
        journal.close()
    assert refused and harmless
    (tmp_path / JOURNAL).write_bytes(b"no journal at all" * 99)
    with pytest.raises(StoreError, match="damaged"):
        journal.state()


def test_what_cannot_be_written_is_an_error_and_leaves_the_file(journal):
    filled(journal)
    connection = journal._database.writer()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=r"could not open or write .*The journal is as it was"):
        journal.append(LINEAGE, 0, change(4, parts={"rows/0": bytes(10**6)}))
    assert len(journal.since(LINEAGE, 0)) == 3


@pytest.mark.parametrize("open_elsewhere", [False, True], ids=["closed", "open elsewhere"])
def test_reading_changes_no_file(journal, tmp_path, open_elsewhere):
    def files():
        found = [file for file in tmp_path.iterdir() if not file.name.endswith("-shm")]
        return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in found}

    context = multiprocessing.get_context("fork")
    written, end = context.Event(), context.Event()
    writer = context.Process(target=write_and_wait, args=(tmp_path, written, end))
    writer.start()
    assert written.wait(60)
    if not open_elsewhere:
        end.set()
        writer.join()
    before = files()
    assert (f"{JOURNAL}-wal" in before) is open_elsewhere
    assert len(journal.since(LINEAGE, 0)) == len(journal.history(LINEAGE)) == 3
    journal.close()
    assert files() == before
    end.set()
    writer.join()
    assert writer.exitcode == 0 and len(journal.since(LINEAGE, 0)) == 3


def write_and_wait(folder, written, end):
    with Journal(folder) as journal:
        filled(journal)
        written.set()
        end.wait(60)


def test_large_content_is_kept_in_pieces(journal, monkeypatch):
    monkeypatch.setattr("nearwise.memory.journal._CHUNK", 7)
    large = change(1, parts={"a": bytes(range(50)), "b": b"", "c": b"7 bytes"})
    journal.append(LINEAGE, 0, large)
    assert journal.since(LINEAGE, 0) == [large]


def test_what_is_still_read_is_not_said_to_be_gone(journal, tmp_path):
    filled(journal)
    with Journal(tmp_path) as reader, reader._reading() as there:
        there[0].execute("SELECT * FROM parts").fetchall()
        journal._database.writer().execute("PRAGMA busy_timeout = 50")
        with pytest.raises(BlockingIOError, match="as another process reads it"):
            journal.fold(LINEAGE, 3)
    journal.fold(LINEAGE, 3)


def test_a_removed_file_is_not_written_to(journal, tmp_path):
    filled(journal)
    for file in tmp_path.iterdir():
        file.unlink()
    assert journal.state() is None
    with pytest.raises(StoreError, match="it ends at 0, and 4 was to follow"):
        journal.append(LINEAGE, 0, change(4))
    journal.append(LINEAGE, 3, change(4))
    with Journal(tmp_path) as again:
        assert [c.version for c in again.since(LINEAGE, 3)] == [4]
