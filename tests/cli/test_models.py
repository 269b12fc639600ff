"""A place for a model is checked before training; two writers never change a model at once."""

import errno
import os

import pytest

from nearwise.cli import models
from nearwise.cli.models import check_out, in_place, new_model, open_model, sole_writer
from tests.classifier.cases import fitted


def test_a_new_place_is_fine_and_its_parents_are_made(tmp_path):
    check_out(tmp_path / "deep" / "model", overwrite=False)
    assert (tmp_path / "deep").is_dir()
    assert not (tmp_path / "deep" / "model").exists()


def test_a_foreign_folder_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"files that are not ours.*Nothing was touched"):
            check_out(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_model_is_replaced_only_when_asked(tmp_path):
    fitted().save(tmp_path / "m")
    with pytest.raises(ValueError, match="--overwrite"):
        check_out(tmp_path / "m", overwrite=False)
    check_out(tmp_path / "m", overwrite=True)


def test_what_only_looks_like_a_model_is_refused_before_training(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="not written by nearwise"):
        check_out(tmp_path, overwrite=True)


def test_what_a_killed_first_save_left_is_no_obstacle(tmp_path):
    (tmp_path / "tensors-0123456789abcdef.safetensors").write_bytes(b"half")
    check_out(tmp_path, overwrite=False)


def test_a_file_is_no_place_for_a_model(tmp_path):
    path = tmp_path / "model"
    path.write_text("")
    with pytest.raises(ValueError, match="is a file"):
        check_out(path, overwrite=True)


def test_a_place_that_takes_no_files_is_refused_before_training(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match=r"Cannot write in .*Choose another --out"):
        check_out(blocked / "model", overwrite=False)


@pytest.mark.parametrize("make", [False, True], ids=["missing", "file"])
def test_opening_what_is_no_folder_says_how_to_make_one(tmp_path, make):
    path = tmp_path / "model"
    if make:
        path.write_text("")
    with pytest.raises(ValueError, match="nearwise fit DATA"):
        open_model(path)


def test_a_second_writer_is_told_to_wait(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with (
        sole_writer(model),
        pytest.raises(BlockingIOError, match="another process is changing"),
        sole_writer(model),
    ):
        pass
    with sole_writer(model):
        pass
    assert list(tmp_path.iterdir()) == [model]


def test_changes_in_place_take_turns_elsewhere_and_keep_replacements_out(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with in_place(model):
        with in_place(model), pytest.raises(BlockingIOError), sole_writer(model):
            pass
        with pytest.raises(BlockingIOError), sole_writer(model):  # the first is still there
            pass
    assert list(tmp_path.iterdir()) == [model]
    with sole_writer(model), pytest.raises(BlockingIOError), in_place(model):
        pass


def test_a_change_needs_no_right_to_write_beside_the_model(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(models, "open_lock", refuse)
    with in_place(tmp_path / "model"):
        pass
    with pytest.raises(PermissionError), sole_writer(tmp_path / "model"):
        pass
    with pytest.raises(PermissionError, match="of the block"), in_place(tmp_path / "model"):
        raise PermissionError(errno.EACCES, "of the block")


def test_the_lock_goes_when_the_writer_fails(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(RuntimeError), sole_writer(model):
        raise RuntimeError
    with sole_writer(model):
        pass


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_what_is_no_lock_file_is_neither_followed_nor_emptied(tmp_path, kind):
    model, thesis = tmp_path / "model", tmp_path / "thesis.tex"
    lock = tmp_path / ".model.lock"
    model.mkdir()
    if kind == "link":
        thesis.write_text("years of work")
    if "link" in kind:
        lock.symlink_to(thesis)
    elif kind == "folder":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    before = sorted(tmp_path.iterdir())
    with (
        pytest.raises(ValueError, match=r"not a plain file.*Nothing was touched"),
        sole_writer(model),
    ):
        pass
    assert sorted(tmp_path.iterdir()) == before
    assert kind != "link" or thesis.read_text() == "years of work"


def test_a_file_of_somebody_else_with_the_lock_s_name_stays_as_it_is(tmp_path):
    model, lock = tmp_path / "model", tmp_path / ".model.lock"
    model.mkdir()
    lock.write_text("mine")
    with sole_writer(model):
        with pytest.raises(BlockingIOError), sole_writer(model):
            pass
        assert lock.read_text() == "mine"
    assert lock.read_text() == "mine"


def test_a_model_reached_through_a_link_has_the_same_lock(tmp_path):
    model, link = tmp_path / "model", tmp_path / "link"
    model.mkdir()
    link.symlink_to(model)
    with sole_writer(model), pytest.raises(BlockingIOError), sole_writer(link):
        pass


def test_a_place_is_kept_from_the_check_to_the_end(tmp_path):
    with new_model(tmp_path / "model", overwrite=False):
        with pytest.raises(BlockingIOError), new_model(tmp_path / "model", overwrite=True):
            pass
        with pytest.raises(BlockingIOError), sole_writer(tmp_path / "model"):
            pass
    assert list(tmp_path.iterdir()) == []
