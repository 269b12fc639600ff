"""What is computed once and read from then on."""

import warnings

import numpy as np
import pytest
import torch

from nearwise.memory import verify_folder, write_folder
from nearwise.memory.computed import read_or_compute


@pytest.fixture
def numbers(tmp_path):
    """Give a function that reads or computes two arrays, and the list of its computations."""
    calls = []

    def compute():
        calls.append(1)
        return {"z": torch.arange(3), "a": np.full((2, 2), 0.5, np.float16)}

    def ask():
        path = tmp_path / "deep" / "entry"
        return read_or_compute(path, compute, kind="test", version=1, what="numbers")

    return ask, calls, tmp_path / "deep" / "entry"


def test_the_second_time_it_is_read_in_the_same_order(numbers):
    ask, calls, _ = numbers
    first, again = ask(), ask()
    assert len(calls) == 1
    assert list(first) == list(again) == ["z", "a"]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert again["a"].dtype == torch.float16


def test_what_is_damaged_is_computed_again_with_a_warning_and_kept(numbers):
    ask, calls, path = numbers
    ask()
    (file,) = path.glob("tensors-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="Stored numbers cannot be used and are computed again"):
        ask()
    ask()
    assert len(calls) == 2


@pytest.mark.parametrize("names", [["z", "other"], 5, [["z"]]])
def test_what_names_other_numbers_is_computed_again(numbers, names):
    ask, calls, path = numbers
    ask()
    found = verify_folder(path)
    write_folder(path, kind="test", format_version=1, tensors=found.tensors, meta={"names": names})
    with pytest.warns(UserWarning, match="cannot be used and are computed again"):
        assert list(ask()) == ["z", "a"]
    assert len(calls) == 2


def test_what_another_process_is_writing_is_computed_and_neither_removed_nor_warned_of(numbers):
    ask, calls, path = numbers
    ask()
    others = path / "tensors-0123456789abcdef.safetensors"
    (path / "manifest.json").unlink()
    others.write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask()
    assert len(calls) == 2


def test_where_nothing_can_be_written_the_numbers_come_all_the_same(numbers):
    ask, calls, path = numbers
    path.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="Numbers are not kept"):
        found = ask()
    assert found["z"].tolist() == [0, 1, 2] and len(calls) == 1
