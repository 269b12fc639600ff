"""`nearwise verify` says what a folder holds, and names what is wrong with it."""

import torch

from nearwise.estimators.storage.persistence import VERSION
from nearwise.memory import MemoryBank, write_folder
from tests.store.folders import based_model, copied, edited, put


def test_it_tells_what_a_model_holds(nearwise, tmp_path):
    model = based_model()
    model.save(tmp_path / "m")
    before = sorted(path.name for path in (tmp_path / "m").iterdir())
    done = nearwise("verify", tmp_path / "m")
    assert done.exit_code == 0 and "is sound" in done.err
    assert "attention k-NN classifier" in done.out and "extra-trees" in done.out
    facts = nearwise("verify", tmp_path / "m", "--json").json()
    assert facts["rows"] == 48 and facts["classes"] == ["no", "yes"]
    assert {*facts["base"]} == {*model.report_.choice["base"]} and facts["networks"] == 0
    assert facts["format version"] == VERSION and "predictions" in facts["checked"]
    assert facts["files"]["number"] == len(before) - 1
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == before

    torn = copied(tmp_path / "m", tmp_path / "torn")
    next(torn.glob("tensors-*")).write_bytes(b"short")
    done = nearwise("verify", torn)
    assert done.exit_code == 2 and "torn" in done.err and "sound" not in done.err

    forged = edited(
        tmp_path / "m", tmp_path / "forged", meta=lambda m: put(m, "acceptance.temperature", 0)
    )
    done = nearwise("verify", forged)
    assert done.exit_code == 2 and "acceptance.temperature" in done.err


def test_it_checks_other_folders_as_far_as_it_knows_them(nearwise, tmp_path):
    MemoryBank(torch.eye(4), torch.tensor([0, 1, 1, 2])).save(tmp_path / "bank")
    facts = nearwise("verify", tmp_path / "bank", "--json").json()
    assert (facts["holds"], facts["rows"], facts["classes"]) == ("memory bank", 4, 3)
    write_folder(tmp_path / "other", kind="notes", format_version=1, tensors={}, meta={})
    facts = nearwise("verify", tmp_path / "other", "--json").json()
    assert facts["holds"] == "notes" and facts["checked"] == ["manifest", "sizes", "checksums"]


def test_what_is_no_folder_of_nearwise_is_refused(nearwise, tmp_path):
    assert nearwise("verify", tmp_path / "nowhere").exit_code == 2
    (tmp_path / "mine").mkdir()
    done = nearwise("verify", tmp_path / "mine")
    assert done.exit_code == 2 and "not a folder saved by nearwise" in done.err
