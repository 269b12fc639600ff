"""A place for a model is checked before training; two writers never change a model at once."""

import pytest

from nearwise.cli.models import check_place, open_model, sole_writer


def test_a_new_place_is_fine_and_its_parents_are_made(tmp_path):
    check_place(tmp_path / "deep" / "model", overwrite=False)
    assert (tmp_path / "deep").is_dir()
    assert not (tmp_path / "deep" / "model").exists()


def test_a_foreign_folder_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="no nearwise model"):
            check_place(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_model_is_replaced_only_when_asked(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="--overwrite"):
        check_place(tmp_path, overwrite=False)
    check_place(tmp_path, overwrite=True)


def test_a_file_is_no_place_for_a_model(tmp_path):
    path = tmp_path / "model"
    path.write_text("")
    with pytest.raises(ValueError, match="is a file"):
        check_place(path, overwrite=True)


def test_a_place_that_takes_no_files_is_refused_before_training(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match=r"Cannot write in .*Choose another --out"):
        check_place(blocked / "model", overwrite=False)


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


def test_the_lock_goes_when_the_writer_fails(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(RuntimeError), sole_writer(model):
        raise RuntimeError
    with sole_writer(model):
        pass
