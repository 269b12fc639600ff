"""A folder is replaced as a whole or not at all, and only read when it is whole."""

import builtins
import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from nearwise.memory import StoreError, read_folder, write_folder

KIND = "test"


def write(path, value=1, kind=KIND, version=1, size=1000):
    write_folder(
        path,
        kind=kind,
        format_version=version,
        tensors={"x": torch.full((size,), value)},
        meta={"value": value},
        blobs={"model": b"%d" % value},
    )


def value_of(path):
    """Read a folder whose three parts must tell the same."""
    folder = read_folder(path, kind=KIND, newest_version=1)
    value = folder.meta["value"]
    assert (folder.tensors["x"] == value).all() and folder.blobs == {"model": b"%d" % value}
    return value


def reason(path, **options):
    with pytest.raises(StoreError) as caught:
        read_folder(path, **({"kind": KIND, "newest_version": 1} | options))
    assert str(path) in str(caught.value)
    return caught.value.reason, str(caught.value)


def test_every_part_comes_back_with_its_dtype(tmp_path):
    base = torch.randn(4, 3)
    tensors = {
        **{str(d): base.to(d) for d in (torch.float16, torch.bfloat16, torch.float64)},
        "int": torch.arange(3),
        "bool": torch.tensor([True, False]),
        "numpy": np.arange(4, dtype=np.int32),
        "empty": torch.empty(0, 5),
        "transposed": base.T,
        "shared": base,
        "scalar": torch.tensor(1.5),
    }
    meta = {"names": ["a", "ü"], "nested": {"x": None, "y": 1.5}, "nan": float("inf")}
    blobs = {"one/two": b"\0\1", "nothing": b""}
    write_folder(
        tmp_path / "a" / "b", kind="k", format_version=3, tensors=tensors, meta=meta, blobs=blobs
    )
    folder = read_folder(tmp_path / "a" / "b", kind="k", newest_version=4)
    assert folder.meta == meta and folder.blobs == blobs and folder.version == 3
    assert set(folder.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(folder.tensors[name], torch.as_tensor(tensor)), name
        assert folder.tensors[name].dtype == torch.as_tensor(tensor).dtype
    folder.tensors["int"].add_(1)  # writable


def test_writing_again_replaces_all_and_leaves_no_old_files(tmp_path):
    for value in range(3):
        write(tmp_path / "m", value)
        assert value_of(tmp_path / "m") == value
    assert len(os.listdir(tmp_path / "m")) == 4


def test_missing_foreign_and_newer_folders_are_refused_with_a_reason(tmp_path):
    assert reason(tmp_path / "none")[0] == "missing"
    (tmp_path / "empty").mkdir()
    assert reason(tmp_path / "empty")[0] == "foreign"
    write(tmp_path / "m")
    kind, message = reason(tmp_path / "m", kind="other")
    assert kind == "foreign" and "holds 'test' and 'other' was expected" in message
    write(tmp_path / "new", version=2)
    kind, message = reason(tmp_path / "new")
    assert kind == "newer" and "format version 2" in message and "-U nearwise" in message


@pytest.mark.parametrize("part", ["tensors", "meta", "blob0"])
@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_torn_folder_is_refused(tmp_path, part, damage):
    write(tmp_path)
    (file,) = tmp_path.glob(f"{part}-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    damaged = {"short": content[:-1], "flipped": content}
    file.unlink()
    if damage != "missing":
        file.write_bytes(damaged[damage])
    kind, message = reason(tmp_path)
    assert kind == "torn" and file.name in message and "Restore it from a copy" in message


def test_other_peoples_files_are_never_written_over(tmp_path):
    file = tmp_path / "thesis.txt"
    file.write_text("years of work")
    with pytest.raises(StoreError, match="files that are not ours"):
        write(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        write(file)
    assert os.listdir(tmp_path) == ["thesis.txt"] and file.read_text() == "years of work"
    write(tmp_path / "m", kind="other kind")
    with pytest.raises(StoreError, match="expected"):
        write(tmp_path / "m")
    write(tmp_path / "n", version=2)
    with pytest.raises(StoreError, match="format version 2"):
        write(tmp_path / "n")
    (tmp_path / "n" / "manifest.json").write_text("{")
    with pytest.raises(StoreError):
        write(tmp_path / "n")


def test_files_added_beside_a_folder_stay(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "README.md").write_text("mine")
    write(tmp_path, 2)
    assert value_of(tmp_path) == 2 and (tmp_path / "README.md").read_text() == "mine"


def test_leftovers_of_a_killed_first_write_are_no_obstacle(tmp_path):
    (tmp_path / "tensors-0123456789abcdef.safetensors").write_bytes(b"half")
    write(tmp_path, 5)
    assert value_of(tmp_path) == 5 and len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "open", "fsync", "replace"])
def test_a_disk_that_refuses_keeps_the_old_content(tmp_path, monkeypatch, call, code):
    write(tmp_path / "m", 1)
    before = sorted(os.listdir(tmp_path / "m"))
    original = getattr(os, call)

    def refuse(target, *args, **options):
        is_folder = call == "open" and os.path.isdir(target)
        if is_folder:
            return original(target, *args, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match=r"could not write to .* unchanged") as caught:
        write(tmp_path / "m", 2)
    monkeypatch.undo()
    assert caught.value.errno == code and os.strerror(code) in str(caught.value)
    assert sorted(os.listdir(tmp_path / "m")) == before and value_of(tmp_path / "m") == 1


def test_a_disk_that_fills_up_and_ctrl_c_half_way_keep_the_old_content(tmp_path, monkeypatch):
    write(tmp_path / "m", 1)
    original, left = os.write, [3000]

    def fill(handle, data):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return original(handle, data[:1500])  # a short write, as on a nearly full disk

    def interrupt(*_):
        raise KeyboardInterrupt

    for call, stop, error in (("write", fill, OSError), ("replace", interrupt, KeyboardInterrupt)):
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(os, call, stop)
            write(tmp_path / "m", 2)
        assert value_of(tmp_path / "m") == 1 and len(os.listdir(tmp_path / "m")) == 4


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="could not write"):
        write(tmp_path / "file" / "m")


def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path):
    write(tmp_path / "m", 1)
    for tensors, meta in [({"t": np.array(["text"])}, {}), ({}, {"f": builtins.print})]:
        with pytest.raises(ValueError, match="cannot be"):
            write_folder(tmp_path / "m", kind=KIND, format_version=1, tensors=tensors, meta=meta)
    assert value_of(tmp_path / "m") == 1


def test_a_reader_follows_a_writer(tmp_path, monkeypatch):
    """The manifest is replaced between reading it and reading the files it names."""
    from nearwise.memory import store

    write(tmp_path / "m", 1)
    original = store._read_manifest
    calls = []

    def slow(*args):
        manifest = original(*args)
        if not calls:
            calls.append(1)
            write(tmp_path / "m", 2)
        return manifest

    monkeypatch.setattr(store, "_read_manifest", slow)
    assert value_of(tmp_path / "m") == 2


DRIVER = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)  # no thread pool that a fork would break
from tests.memory.test_store import value_of, write
folder, delays = sys.argv[1], map(float, sys.argv[2:])
write(folder, 0)
for delay in delays:
    read, put = os.pipe()
    child = os.fork()
    if child == 0:
        for value in range(1, 10**9):
            write(folder, value, size=300_000)
            os.write(put, b"%d " % value)
    os.close(put)
    told = os.read(read, 100)  # it is at work
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as rest:
        told += rest.read()
    last = int(told.split()[-1])
    # Whole, and no older than what the writer was told is safe.
    assert value_of(folder) in (last, last + 1), (last, value_of(folder))
    print(last, len(os.listdir(folder)), flush=True)
write(folder, 7)
assert value_of(folder) == 7 and len(os.listdir(folder)) == 4
"""


@pytest.mark.parametrize("n_kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_leaves_the_old_or_the_new(tmp_path, n_kills):
    delays = np.random.default_rng(n_kills).uniform(0, 0.01 * n_kills, n_kills)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join([root, *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "m"), *map(str, delays)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(delays)
