"""What is written appears whole, and nothing of anybody else's is followed or replaced."""

import os

import numpy as np
import pandas as pd
import pytest

from nearwise.safe_files import plain, write_whole


def test_a_link_stays_and_the_file_it_leads_to_is_replaced(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_the_other_names_of_a_file_keep_what_they_had(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")
    os.link(first, second)
    write_whole(first, b"new")
    assert (first.read_bytes(), second.read_bytes()) == (b"new", b"old")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"rows")
        assert os.read(reader, 100) == b"rows"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.csv'"):
        write_whole(path, b"new")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_gaps_of_every_kind_are_null_in_json():
    gaps = [float("nan"), np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), None]
    assert plain(gaps) == [None] * len(gaps)
    assert plain([pd.Timestamp("2024-05-01"), "NaT", True]) == ["2024-05-01 00:00:00", "NaT", True]
