"""Every byte of a store on disk is under a checksum, and nothing in it is another file."""

import os
import shutil

import numpy as np
import pytest

from nearwise.memory import StoreError, read_folder, write_folder
from nearwise.memory.stores import bulk as bulk_module
from nearwise.memory.stores.bulk_files import noted
from nearwise.memory.stores.disk import KIND, DiskStore
from tests.memory.stores.cases import (
    SCHEMA,
    SUMMARY,
    assert_same,
    batches,
    edit,
    everything,
    some_rows,
    without_ties,
)
from tests.memory.stores.servers import require

ROWS = without_ties(some_rows(800))
SHARES = (0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1)  # of a file, where a byte is changed
KINDS = ("ids.npy", "space0.faiss", "space0.lists", ".lance", ".manifest", ".txn", ".json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two stores of the same kind and size, whose indexes are in parts."""
    require("lance", "faiss")
    root = tmp_path_factory.mktemp("bulk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_module, "AUTO_EXACT_BELOW", 500)
        patch.setattr(bulk_module, "BATCH", 300)
        patch.setattr(bulk_module, "_SHARD", 500 * 4 * 4)
        for name, seed in (("s", 1), ("other", 2)):
            DiskStore.create(root / name, SCHEMA, batches(without_ties(ROWS, seed)), SUMMARY)
    return root


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made / "s", tmp_path / "s")


def bulk_of(folder):
    (bulk,) = folder.glob("bulk-*")
    return bulk


def file_of(folder, kind):
    files = [path for path in bulk_of(folder).rglob("*") if path.is_file()]
    (found,) = [path for path in files if path.name.endswith(kind)]
    return found


def sound(folder):
    """Open a store and check it, as `nearwise verify` does."""
    store = DiskStore.open(str(folder))
    try:
        return store.verify()
    finally:
        store.close()


def sealed(folder, form=2, **meta):
    """Write the head again, with right checksums for files that were changed."""
    head = read_folder(folder / "head", kind=KIND, newest_version=2)
    kept = head.meta | {"files": noted(bulk_of(folder))} | meta
    kept = {name: value for name, value in kept.items() if value is not None}
    shutil.rmtree(folder / "head")  # an older form does not replace a newer one
    write_folder(folder / "head", kind=KIND, format_version=form, tensors={}, meta=kept)
    return folder


def assert_torn(folder, reason="torn"):
    with pytest.raises(StoreError) as found:
        sound(folder)
    assert found.value.reason == reason and str(folder) in str(found.value)
    return str(found.value)


def test_every_file_is_one_of_the_kinds_tested_here(made):
    files = [path for path in bulk_of(made / "s").rglob("*") if path.is_file()]
    assert all(path.name.replace("space1", "space0").endswith(KINDS) for path in files)
    assert sound(made / "s").unchecked == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_that_was_changed_is_found_wherever_it_is(folder, kind):
    path = file_of(folder, kind)
    whole = path.read_bytes()
    for share in SHARES:
        at = int(share * (len(whole) - 1))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        assert path.name in assert_torn(folder)
    path.write_bytes(whole)
    sound(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path):
    path.write_bytes(b"")


def lengthened(path):
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [cut, emptied, lengthened, os.unlink])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_size_is_noticed_when_a_store_is_opened(folder, kind, damage):
    path = file_of(folder, kind)
    damage(path)
    with pytest.raises(StoreError, match=path.name) as found:
        DiskStore.open(str(folder))
    assert found.value.reason == "torn"


def as_pipe(path, outside):
    path.unlink()
    os.mkfifo(path)


def as_link(path, outside):
    shutil.move(path, outside)
    path.symlink_to(outside)


def as_link_of_its_folder(path, outside):
    shutil.move(path.parent, outside)
    path.parent.symlink_to(outside)


@pytest.mark.parametrize("change", [as_pipe, as_link, as_link_of_its_folder])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [1, 2])
def test_what_is_no_regular_file_is_refused_when_a_store_is_opened(
    folder, tmp_path, kind, change, version
):
    if version == 1:
        sealed(folder, form=1, files=None)
    change(file_of(folder, kind), tmp_path / "outside")
    with pytest.raises(StoreError) as found:
        DiskStore.open(str(folder))
    assert found.value.reason == "foreign"


@pytest.mark.parametrize("part", ["head", "bulk-*"])
def test_a_part_that_is_a_link_is_refused(folder, tmp_path, part):
    (path,) = folder.glob(part)
    shutil.move(path, tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="link"):
        DiskStore.open(str(folder))


@pytest.mark.parametrize("kind", KINDS[1:-1])  # whose bytes differ
def test_a_file_of_another_store_is_noticed(made, folder, kind):
    shutil.copy(file_of(made / "other", kind), file_of(folder, kind))
    assert_torn(folder)


def test_a_file_that_was_not_written_with_it_is_noticed(folder):
    manifest = file_of(folder, ".manifest")
    shutil.copy(manifest, manifest.with_name("1.manifest"))  # Lance would take the newest
    assert "1.manifest" in assert_torn(folder)


def permuted(ids):
    return np.concatenate([ids[1:2], ids[:1], ids[2:]])


FORGED_IDS = {
    "not in order": permuted,
    "an id twice": lambda ids: np.maximum(ids, ids[1]),
    "below zero": lambda ids: ids - ids[0] - 1,
    "too few": lambda ids: ids[:-1],
    "other ids": lambda ids: ids + 1,
    "another type": lambda ids: ids.astype(np.int32),
    "decimals": lambda ids: ids.astype(np.float64),
    "a table": lambda ids: ids.reshape(-1, 2),
    "objects": lambda ids: ids.astype(object),
    "another order of bytes": lambda ids: ids.astype(">i8"),
}


@pytest.mark.parametrize("forge", FORGED_IDS.values(), ids=FORGED_IDS)
@pytest.mark.parametrize("version", [1, 2])
def test_ids_that_no_store_has_are_refused_whatever_their_checksum(folder, forge, version):
    path = file_of(folder, "ids.npy")
    np.save(path, forge(np.load(path)))
    if version == 1:
        sealed(folder, form=1, files=None)
    else:
        sealed(folder)
    assert_torn(folder)


@pytest.mark.parametrize("names", [("space0.faiss", "space0.lists"), ("space1.faiss",)])
def test_an_index_of_other_vectors_is_noticed_whatever_its_checksum(made, folder, names):
    for name in names:
        shutil.copy(bulk_of(made / "other") / name, bulk_of(folder) / name)
    assert "other keys than its rows" in assert_torn(sealed(folder))


def test_an_index_of_another_space_is_noticed_when_it_is_searched(folder):
    file_of(folder, "space0.lists").unlink()
    shutil.copy(file_of(folder, "space1.faiss"), file_of(folder, "space0.faiss"))
    assert_torn(sealed(folder))
    with pytest.raises(StoreError, match="none of its rows"):
        DiskStore.open(str(folder)).reader().search("all", ROWS.keys["all"][:2], 3)


@pytest.mark.parametrize("name", ["space0.lists", "space1.faiss"])
def test_an_index_whose_file_ends_early_is_refused_whatever_its_checksum(folder, name):
    path = file_of(folder, name)
    path.write_bytes(path.read_bytes()[:-1000])
    space = list(SCHEMA.spaces)[int(name[5])]
    store = DiskStore.open(str(sealed(folder)))
    with pytest.raises(StoreError) as found:
        store.reader().search(space, ROWS.keys[space][:2], 3)
    assert found.value.reason == "torn"


@pytest.mark.parametrize("kind", [".manifest", "space0.faiss"])
def test_what_describes_rows_and_indexes_is_read_or_refused_whatever_it_says(folder, kind):
    path = file_of(folder, kind)
    whole, found = path.read_bytes(), 0
    for at in range(0, len(whole), 1 + len(whole) // 50):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        reader = DiskStore.open(str(sealed(folder))).reader()
        try:
            reader.search("all", ROWS.keys["all"][:2], 3)
            everything(reader)
        except StoreError as error:
            found += error.reason == "torn"
    assert found > 3


def test_rows_of_another_store_are_noticed_whatever_their_checksum(folder):
    shutil.rmtree(bulk_of(folder) / "rows.lance")
    other = DiskStore.create(folder.parent / "o", SCHEMA, [some_rows(800, seed=5)], SUMMARY)
    shutil.copytree(bulk_of(folder.parent / "o") / "rows.lance", bulk_of(folder) / "rows.lance")
    other.close()
    assert "other ids" in assert_torn(sealed(folder))


def test_rows_in_files_elsewhere_are_refused(folder, tmp_path):
    lance = pytest.importorskip("lance")
    rows = lance.dataset(str(bulk_of(folder) / "rows.lance"))
    base = lance.DatasetBasePath(str(tmp_path / "elsewhere"), name="b")
    made = lance.write_dataset(
        rows.to_table(), str(tmp_path / "l"), initial_bases=[base], target_bases=["b"]
    )
    assert made.count_rows() == 800
    shutil.rmtree(bulk_of(folder) / "rows.lance")
    shutil.copytree(tmp_path / "l", bulk_of(folder) / "rows.lance")
    assert "files elsewhere" in assert_torn(sealed(folder))


FORGED_HEADS = {
    "a bulk elsewhere": {"bulk": "/elsewhere"},
    "a bulk above": {"bulk": "../s/bulk-00000000"},
    "a bulk of another name": {"bulk": "head"},
    "a name with a line's end": {"bulk": "bulk-00000000\n"},
    "probes of another space": {"probes": {"x": 1}},
    "fewer probes than none": {"probes": {"all": -1, "some": 0}},
    "probes in words": {"probes": {"all": "1", "some": 0}},
    "a version below zero": {"version": -1},
    "a schema of no width": {"schema": {"spaces": {"all": [0, "cosine"]}, "n_facts": 0}},
    "a metric that is none": {"schema": {"spaces": {"all": [4, "x"]}, "n_facts": 0}},
    "no checksums": {"files": None},
    "a summary that is none": {"summary": [1]},
    "more than is ever written": {"x": 1},
}


@pytest.mark.parametrize("meta", FORGED_HEADS.values(), ids=FORGED_HEADS)
def test_a_head_that_is_never_written_is_refused(folder, meta):
    with pytest.raises(StoreError, match="never writes") as found:
        DiskStore.open(str(sealed(folder, **meta)))
    assert found.value.reason == "invalid"


def test_a_store_without_checksums_opens_and_gets_them_with_a_snapshot(folder):
    sealed(folder, form=1, files=None)
    (told,) = sound(folder).unchecked
    assert "nearwise compact" in told
    store = DiskStore.open(str(folder))
    store.apply(edit(1, removed=ROWS.ids[:2]), 0)
    before = everything(store.reader())
    store.snapshot()
    assert store.verify().unchecked == []
    assert_same(everything(store.reader()), before)


def test_a_snapshot_gives_no_new_checksums_to_what_is_damaged(folder):
    path = file_of(folder, ".lance")
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 3] ^= 1
    path.write_bytes(whole)
    store, before = DiskStore.open(str(folder)), sorted(os.listdir(folder))
    with pytest.raises(StoreError, match="checksum"):
        store.snapshot()
    assert sorted(os.listdir(folder)) == before


def test_reading_changes_no_file_and_prints_nothing(folder, capfd):
    before = noted(bulk_of(folder))
    capfd.readouterr()
    store = DiskStore.open(str(folder))
    everything(store.reader())
    store.reader().search("all", ROWS.keys["all"][:9], 5)
    store.verify()
    assert noted(bulk_of(folder)) == before == store._head.files
    assert capfd.readouterr().out == ""  # where predictions go
