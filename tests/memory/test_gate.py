"""The gate: of a folder from elsewhere regular files inside it are opened, and nothing else."""

import os
import re

import pytest

from nearwise.memory.gate import StoreError, check_database, check_tree, opened, subfolder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "victim").write_bytes(b"of the user")
    made = tmp_path / "model"
    (made / "rows" / "head").mkdir(parents=True)
    (made / "part").write_bytes(b"12345")
    (made / "rows" / "head" / "part").write_bytes(b"6")
    return made


def link(path):
    path.symlink_to("../victim")


def device(path):
    path.symlink_to("/dev/zero")


KINDS = {"link": link, "device": device, "pipe": os.mkfifo, "folder": os.mkdir}


@pytest.mark.parametrize("place", ["", "rows/head/"])
@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(folder, kind, place):
    KINDS[kind](folder / place / "odd")
    with pytest.raises(StoreError, match="regular files only"), opened(folder, f"{place}odd"):
        pass


def test_regular_files_are_opened_with_their_size(folder):
    for name, content in {"part": b"12345", "rows/head/part": b"6"}.items():
        with opened(folder, name) as (file, size):
            assert (file.read(), size) == (content, len(content))
    with pytest.raises(FileNotFoundError), opened(folder, "rows/none"):
        pass


@pytest.mark.parametrize("name", ["../victim", "rows/../../victim", "/etc/passwd", ".", "", "a//b"])
def test_no_name_leads_out_of_the_folder(folder, name):
    with pytest.raises(StoreError, match="no file inside"), opened(folder, name):
        pass


def test_no_folder_on_the_way_may_be_a_link(folder, tmp_path):
    (folder / "rows").rename(tmp_path / "rows")
    (folder / "rows").symlink_to(tmp_path / "rows")
    with pytest.raises(StoreError), opened(folder, "rows/head/part"):
        pass
    with pytest.raises(StoreError, match="no folder"):
        subfolder(folder, "rows")
    with pytest.raises(StoreError):
        subfolder(folder, "part")


def test_the_folder_that_the_user_names_may_be_a_link(folder, tmp_path):
    (tmp_path / "other").symlink_to(folder)
    assert list(check_tree(tmp_path / "other")) == ["part", "rows/head/part"]
    assert subfolder(tmp_path / "other", "rows").is_dir()
    with opened(tmp_path / "other", "part") as (file, _):
        assert file.read() == b"12345"


def test_a_tree_is_listed_with_its_sizes(folder):
    assert check_tree(folder) == {"part": 5, "rows/head/part": 1}
    with pytest.raises(StoreError, match="no file of nearwise"):
        check_tree(folder, re.compile("rows/head/part"))


@pytest.mark.parametrize("kind", ["link", "device", "pipe"])
def test_nothing_but_regular_files_may_lie_in_a_tree(folder, kind):
    KINDS[kind](folder / "rows" / "head" / "odd")
    with pytest.raises(StoreError, match="regular files only"):
        check_tree(folder)


def test_a_log_without_its_database_is_refused(folder):
    (folder / "base.sqlite3-wal").write_bytes(b"")
    with pytest.raises(StoreError, match="is missing") as caught:
        check_database(folder / "base.sqlite3")
    assert caught.value.reason == "torn"
