"""A manifest or a file that nearwise did not write is refused at once, and says so."""

import signal
from contextlib import contextmanager

import pytest

from nearwise.estimators import AttnKNNClassifier
from nearwise.memory import StoreError
from nearwise.memory.store import MANIFEST
from tests.store.folders import copied, with_manifest
from tests.store.hostile.test_folders import bound, fifo, link, subfolder


@contextmanager
def within(seconds):
    """Fail where an answer takes longer, as it would from a pipe that nobody writes to."""

    def stop(*_):
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(folder, reason, message):
    with within(20), pytest.raises(StoreError, match=message) as caught:
        AttnKNNClassifier.load(folder)
    assert caught.value.reason == reason
    assert str(folder) in str(caught.value)


def changed(name, value):
    return lambda manifest: manifest | {name: value}


def entry(part, **values):
    def change(manifest):
        manifest["files"][part] |= values

    return change


def without(part):
    def change(manifest):
        del manifest["files"][part]

    return change


def swapped(manifest):
    files = manifest["files"]
    files["meta"], files["tensors"] = files["tensors"], files["meta"]


MANIFESTS = {
    "not JSON": (lambda m: "{", "foreign", "damaged"),
    "empty": (lambda m: " ", "foreign", "damaged"),
    "a list": (lambda m: "[]", "foreign", "damaged"),
    "null": (lambda m: "null", "foreign", "damaged"),
    "nested deeply": (lambda m: "[" * 200_000, "foreign", "damaged"),
    "version as text": (changed("version", "1"), "foreign", "version"),
    "version zero": (changed("version", 0), "foreign", "version"),
    "version below zero": (changed("version", -5), "foreign", "version"),
    "version true": (changed("version", True), "foreign", "version"),
    "version of the future": (changed("version", 99), "newer", "pip install -U"),
    "version of the past": (changed("version", 1), "older", "nearwise fit"),
    "another kind": (changed("kind", "memory bank"), "foreign", "was expected"),
    "kind is a list": (changed("kind", ["x"]), "foreign", "kind"),
    "another format": (changed("format", "other"), "foreign", "format"),
    "files is a list": (changed("files", []), "foreign", "files"),
    "no files": (changed("files", {}), "torn", "'tensors' is missing"),
    "an entry is a number": (changed("files", {"meta": 5}), "foreign", "files.meta"),
    "a path to elsewhere": (entry("meta", file="../meta-0.json"), "foreign", "files.meta.file"),
    "an absolute path": (entry("meta", file="/etc/passwd"), "foreign", "files.meta.file"),
    "a name with a newline": (
        lambda m: entry("meta", file=m["files"]["meta"]["file"] + "\n")(m),
        "foreign",
        "files.meta.file",
    ),
    "a size as text": (entry("meta", size="5"), "foreign", "files.meta.size"),
    "a size below zero": (entry("meta", size=-1), "foreign", "files.meta.size"),
    "another size": (entry("tensors", size=10**15), "torn", "bytes instead of"),
    "no JSON part": (without("meta"), "torn", "'meta' is missing"),
    "no tensors": (without("tensors"), "torn", "'tensors' is missing"),
    "JSON and tensors swapped": (swapped, "torn", "decoded"),
    "a generation that is a path": (changed("generation", "../.."), "foreign", "generation"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_nearwise_never_writes_is_refused(name, plain_folder, tmp_path):
    change, reason, message = MANIFESTS[name]
    refused(with_manifest(copied(plain_folder, tmp_path / "m"), change), reason, message)


def part_of(folder):
    return next(folder.glob("tensors-*"))


def to_same_bytes(path):
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


SWAPS = {
    "a link to the same bytes": to_same_bytes,
    "a link to a device": lambda path: link(path, "/dev/zero"),
    "a link to itself": lambda path: link(path, path),
    "a pipe": fifo,
    "a folder": subfolder,
    "a socket": bound,
}


@pytest.mark.parametrize("which", ["part", "manifest"])
@pytest.mark.parametrize("name", SWAPS)
def test_only_regular_files_of_the_folder_are_read(
    name, which, plain_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = copied(plain_folder, tmp_path / "m")
    SWAPS[name](part_of(folder) if which == "part" else folder / MANIFEST)
    refused(folder, "foreign", "regular files only")


def test_a_large_manifest_is_not_read(plain_folder, tmp_path):
    folder = copied(plain_folder, tmp_path / "m")
    with (folder / MANIFEST).open("r+b") as file:
        file.truncate(2**40)  # sparse: takes no room
    refused(folder, "foreign", "too many for a manifest")


def test_parts_of_another_model_are_refused(plain_folder, based_folder, tmp_path):
    folder = copied(plain_folder, tmp_path / "m")
    part_of(folder).write_bytes(part_of(based_folder).read_bytes())
    refused(folder, "torn", "bytes instead of|checksum")


@pytest.mark.parametrize("path", ["nowhere", "a\0b", ""])
def test_a_path_without_a_model_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"nothing at|not a folder saved by nearwise"):
        AttnKNNClassifier.load(path)


def test_a_folder_of_any_name_opens(plain_folder, tmp_path):
    folder = copied(plain_folder, tmp_path / "модель 模型 💾")
    assert len(AttnKNNClassifier.load(folder).memory_) == 90
    (tmp_path / "link").symlink_to(folder)
    assert len(AttnKNNClassifier.load(tmp_path / "link").memory_) == 90
