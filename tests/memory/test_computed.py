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


@pytest.mark.parametrize("names", [None, ["z", "other"], 5, [["z"]]])
def test_what_is_damaged_or_names_other_numbers_is_computed_again_and_kept(numbers, names):
    ask, calls, path = numbers
    ask()
    if names is None:
        (file,) = path.glob("tensors-*")
        file.write_bytes(file.read_bytes()[:-1])
    else:
        kept = {"kind": "test", "format_version": 1, "tensors": verify_folder(path).tensors}
        write_folder(path, **kept, meta={"names": names})
    with pytest.warns(UserWarning, match="Stored numbers cannot be used and are computed again"):
        assert list(ask()) == ["z", "a"]
    ask()
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
