"""A place for a model is checked before training; two writers never change a model at once."""

import errno
import os

import pytest

from nearwise.cli import models
from nearwise.cli.models import check_out, in_place, new_model, sole_writer


@pytest.fixture
def model(tmp_path):
    """An empty folder that takes the part of a model."""
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_a_new_place_and_what_a_killed_save_left_are_fine(tmp_path):
    (tmp_path / "tensors-0123456789abcdef.safetensors").write_bytes(b"half")
    check_out(tmp_path, overwrite=False)
    check_out(tmp_path / "deep" / "model", overwrite=False)
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "overwrite", "message"),
    [
        ("thesis.tex", False, r"files that are not ours.*Nothing was touched"),
        ("thesis.tex", True, r"files that are not ours.*Nothing was touched"),
        ("manifest.json", True, "not written by nearwise"),
    ],
)
def test_what_is_no_model_is_never_replaced(tmp_path, name, overwrite, message):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=message):
        check_out(tmp_path, overwrite=overwrite)
    assert (tmp_path / name).read_text() == "{}"


def test_a_place_that_takes_no_files_is_refused_before_training(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match=r"Cannot write in .*Choose another --out"):
        check_out(blocked / "model", overwrite=False)


def is_taken(writer):
    with pytest.raises(BlockingIOError), writer:
        pass
    return True


def test_a_model_has_one_writer_by_whatever_name_and_no_lock_is_left(model, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(model)
    with sole_writer(model):
        assert is_taken(sole_writer(model)) and is_taken(sole_writer(link))
        assert is_taken(in_place(model))
    with pytest.raises(RuntimeError), sole_writer(model):
        raise RuntimeError
    with sole_writer(model):
        pass
    assert sorted(tmp_path.iterdir()) == [link, model]


def test_changes_in_place_take_turns_elsewhere_and_keep_replacements_out(model):
    with in_place(model):
        with in_place(model):
            assert is_taken(sole_writer(model))
        assert is_taken(sole_writer(model))  # the first is still there
    assert list(model.parent.iterdir()) == [model]


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


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_what_is_no_lock_file_is_neither_followed_nor_emptied(model, tmp_path, kind):
    thesis, lock = tmp_path / "thesis.tex", tmp_path / ".model.lock"
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


def test_a_file_of_somebody_else_with_the_lock_s_name_stays_as_it_is(model, tmp_path):
    lock = tmp_path / ".model.lock"
    lock.write_text("mine")
    with sole_writer(model):
        assert is_taken(sole_writer(model)) and lock.read_text() == "mine"
    assert lock.read_text() == "mine"


def test_a_place_is_kept_from_the_check_to_the_end(tmp_path):
    place = tmp_path / "new"
    with new_model(place, overwrite=False):
        assert is_taken(new_model(place, overwrite=True)) and is_taken(sole_writer(place))
    assert list(tmp_path.iterdir()) == []
