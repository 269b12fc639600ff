"""A database from elsewhere is read from a copy; one that is written to keeps its locks."""

import fcntl
import multiprocessing
import os
import random
import sqlite3
import tempfile
import time

import pytest

from nearwise.memory.database import Database, database_image
from nearwise.memory.gate import StoreError

TABLE = [("CREATE TABLE numbers (n INTEGER, filler BLOB)", ())]


@pytest.fixture
def database(tmp_path):
    (tmp_path / "base").write_bytes(database_image(TABLE))
    made = Database(tmp_path / "base")
    yield made
    made.close()


def insert(database, number, size=10):
    values = number, random.Random(number).randbytes(size)
    database.writer().execute("INSERT INTO numbers VALUES (?, ?)", values)


def largest(database):
    return database.reader().execute("SELECT max(n) FROM numbers").fetchone()[0]


def in_another_process(function, *values):
    process = multiprocessing.get_context("fork").Process(target=function, args=values)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def insert_once(path, number):
    database = Database(path)
    insert(database, number)
    database.close()


def test_a_new_database_is_put_in_place_whole_and_in_wal_mode(database):
    assert os.listdir(database.path.parent) == ["base"]
    insert(database, 1)
    assert sorted(os.listdir(database.path.parent)) == ["base", "base-shm", "base-wal"]


def test_what_another_process_has_committed_is_seen_also_in_the_log(database, tmp_path):
    reader = Database(tmp_path / "base")
    for number in (1, 2):
        insert(database, number)
        # as a process would that has no connection to it
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        for name in ("base", "base-wal"):
            (copy / name).write_bytes((tmp_path / name).read_bytes())
        elsewhere = Database(copy / "base")
        assert largest(elsewhere) == largest(reader) == number
        assert sorted(os.listdir(copy)) == ["base", "base-wal"]
    reader.close()


def test_a_copy_is_made_again_when_the_database_has_changed(database):
    assert largest(database) is None
    for number in (1, 2, 3):
        in_another_process(insert_once, database.path, number)
        assert largest(database) == number
    assert os.listdir(database.path.parent) == ["base"]


def test_reading_in_one_process_does_not_undo_locks_of_its_writer(database):
    insert(database, 1)
    log = database.path.with_name("base-wal")
    node = log.stat().st_ino
    other = Database(database.path)
    assert largest(other) == 1
    other.close()
    in_another_process(insert_once, database.path, 2)  # the last to close removes the log
    assert log.exists() and log.stat().st_ino == node
    insert(database, 3)
    database.close()
    assert largest(database) == 3


def test_a_writer_that_was_let_go_is_not_taken_for_one(database, tmp_path):
    insert(database, 1)
    database.close()
    insert(Database(tmp_path / "base"), 2)
    assert largest(database) == 2
    assert os.listdir(tmp_path) == ["base"]


def test_copies_that_killed_processes_left_are_removed_and_no_others(database, monkeypatch):
    place = database.path.parent / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    for name in ("left", "held", "new", "other"):
        folder = place / (name if name == "other" else f"nearwise-copy-{name}")
        folder.mkdir()
        (folder / "base").write_bytes(b"rows")
        if name != "new":
            os.utime(folder, (0, 0))
    (place / "nearwise-copy-link").symlink_to(place / "other")
    held = os.open(place / "nearwise-copy-held", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert largest(database) is None
    os.close(held)
    stay = ["nearwise-copy-held", "nearwise-copy-link", "nearwise-copy-new", "other"]
    assert sorted(os.listdir(place)) == stay and (place / "other" / "base").exists()


def write_all_the_time(path, begun, end):
    database, number = Database(path), 0
    while not end.is_set():
        number += 1
        insert(database, number, size=random.Random(number).choice([10, 1_000, 30_000]))
        begun.set()
        if number % 7 == 0:
            database.writer().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if number % 11 == 0:
            database.close()
        time.sleep(random.Random(number).choice([0.0, 0.001, 0.1]))  # a copy fits in sometimes


def test_copies_made_while_another_process_writes_are_whole(database, monkeypatch):
    monkeypatch.setattr("nearwise.memory.database._PATIENCE", 100.0)  # of a busy machine
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()
    writer = context.Process(target=write_all_the_time, args=(database.path, begun, end))
    writer.start()
    try:
        assert begun.wait(60)
        last = 0
        for _ in range(25):
            connection = database.reader()
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            count, newest = connection.execute("SELECT count(*), max(n) FROM numbers").fetchone()
            assert count == newest >= last
            last = newest
    finally:
        end.set()
        writer.join()


def test_a_database_that_would_write_a_rollback_journal_is_not_written_to(tmp_path):
    connection = sqlite3.connect(tmp_path / "base")
    connection.execute(TABLE[0][0])
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="not made by nearwise"):
        Database(tmp_path / "base").writer()
    assert os.listdir(tmp_path) == ["base"]


def test_a_fork_reads_a_copy_of_its_own(database):
    insert(database, 1)
    database.close()
    assert largest(database) == 1
    if (child := os.fork()) == 0:
        os._exit(0 if largest(database) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert largest(database) == 1
