"""The results folder: nothing lost, nothing mixed."""

import json

import pytest
from nearwise_lab.experiments.records import (
    RECORDS_FILE,
    SETTINGS_FILE,
    Record,
    RecordsError,
    RunFolder,
    lock_folder,
    read_records,
)

SETTINGS = {"noise": 0.0, "noise_kind": "symmetric"}


def row(method="a", seed=0, **values):
    return Record("iris", method, seed, **values)


def written(folder, *records):
    with RunFolder(folder, SETTINGS) as run:
        run.append(records)


def test_a_record_survives_its_line():
    record = row(nll=0.25, k=16, choice={"C": 1.0}, hardware={"cores": 2}, reason="ä\nb")
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


def test_numbers_that_are_not_finite_become_null():
    assert json.loads(row(nll=float("inf")).to_json())["nll"] is None


def test_fields_of_a_later_version_are_ignored():
    line = json.dumps(json.loads(row().to_json()) | {"from_the_future": 1})
    assert Record.from_json(line) == row()


def test_rows_come_back_in_order(tmp_path):
    written(tmp_path, row("a"), row("b"))
    written(tmp_path, row("c"))
    assert [r.method for r in read_records(tmp_path)] == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path, cut):
    written(tmp_path, row("a"), row("b"))
    path = tmp_path / RECORDS_FILE
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r.method for r in read_records(tmp_path)] == ["a"]
    written(tmp_path, row("c"))
    assert [r.method for r in read_records(tmp_path)] == ["a", "c"]


def test_a_last_line_of_zeros_is_dropped(tmp_path):
    written(tmp_path, row("a"))
    path = tmp_path / RECORDS_FILE
    path.write_bytes(path.read_bytes() + b"\0\0\0\n")
    written(tmp_path, row("b"))
    assert [r.method for r in read_records(tmp_path)] == ["a", "b"]


def test_damage_before_the_last_line_is_refused(tmp_path):
    written(tmp_path, row("a"), row("b"))
    path = tmp_path / RECORDS_FILE
    path.write_bytes(b"{not json}\n" + path.read_bytes())
    with pytest.raises(RecordsError, match="line 1, is damaged"):
        read_records(tmp_path)
    with pytest.raises(RecordsError, match="line 1, is damaged"):
        written(tmp_path, row("c"))


def test_halves_without_their_whole_are_left_out(tmp_path):
    half = row("attention:base-alone", part_of="attention")
    written(tmp_path, half)
    assert read_records(tmp_path) == []
    written(tmp_path, half, row("attention"))
    assert [r.method for r in read_records(tmp_path)] == ["attention:base-alone", "attention"]


def test_a_failed_row_is_run_again_and_replaced(tmp_path):
    written(tmp_path, row(status="failed", reason="no memory"))
    with RunFolder(tmp_path, SETTINGS) as run:
        assert run.finished() == set()
        run.append([row(nll=0.5)])
        assert run.finished() == {row().key}
    assert [r.status for r in read_records(tmp_path)] == ["ok"]


def test_other_settings_are_refused(tmp_path):
    written(tmp_path, row())
    with pytest.raises(RecordsError, match=r"noise=0.0, this run has noise=0.3"):
        RunFolder(tmp_path, SETTINGS | {"noise": 0.3}).__enter__()
    assert len(read_records(tmp_path)) == 1


def test_another_data_set_of_the_same_name_is_refused(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as run:
        run.claim_dataset("mine", {"n_rows": 10})
        run.append([Record("mine", "a", 0)])
    with RunFolder(tmp_path, SETTINGS) as run:
        run.claim_dataset("mine", {"n_rows": 10})
        with pytest.raises(RecordsError, match="another data set called 'mine'"):
            run.claim_dataset("mine", {"n_rows": 11})


def test_two_writers_are_refused(tmp_path):
    pytest.importorskip("fcntl")
    first, second = RunFolder(tmp_path, SETTINGS), RunFolder(tmp_path, SETTINGS)
    with first, pytest.raises(RecordsError, match="another process is writing"):
        second.__enter__()
    written(tmp_path, row())


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / RECORDS_FILE).write_text("something else\n")
    with pytest.raises(RecordsError, match="was not made by"):
        RunFolder(tmp_path, SETTINGS).__enter__()
    assert (tmp_path / RECORDS_FILE).read_text() == "something else\n"


def test_a_damaged_settings_file_is_refused(tmp_path):
    written(tmp_path, row())
    (tmp_path / SETTINGS_FILE).write_text("[]")
    with pytest.raises(RecordsError, match="damaged, or of another command"):
        RunFolder(tmp_path, SETTINGS).__enter__()


def test_an_empty_folder_says_what_to_pass(tmp_path):
    with pytest.raises(RecordsError, match="Pass a folder written by"):
        read_records(tmp_path)


def test_other_settings_of_a_preset_are_refused_and_other_presets_are_not(tmp_path):
    with RunFolder(tmp_path, {}) as folder:
        claim(folder, "v0.5", lr=1.0, sizes=(1, 2))
        folder.append([Record("digits", "a", 0, preset="v0.5")])
    with RunFolder(tmp_path, {}) as folder:
        claim(folder, "v0.5", lr=1.0, sizes=(1, 2))
        claim(folder, "v0.4", lr=2.0)
        with pytest.raises(RecordsError, match=r"v0.5 on digits.*lr=1.0, now 3.0"):
            claim(folder, "v0.5", lr=3.0, sizes=[1, 2])


def claim(folder, preset, **settings):
    folder.claim_preset(f"{preset} on digits", settings, lambda record: record.preset == preset)


def test_a_folder_without_a_row_is_bound_to_no_settings(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as run:
        run.claim_dataset("iris", {"n_rows": 10})
        claim(run, "v0.5", lr=1.0)
    with RunFolder(tmp_path, SETTINGS | {"noise": 0.3}) as run:
        run.claim_dataset("iris", {"n_rows": 11})
        claim(run, "v0.5", lr=3.0)
        claim(run, "v0.5", lr=4.0)
        run.append([row("a")])
    with pytest.raises(RecordsError, match=r"this run has noise=0\.0"):
        RunFolder(tmp_path, SETTINGS).__enter__()


def test_rows_that_all_failed_make_way_for_other_settings(tmp_path):
    written(tmp_path, row(status="failed", reason="out of memory"), row("b", status="failed"))
    with RunFolder(tmp_path, SETTINGS | {"noise": 0.3}) as run:
        assert run.records == []
        run.append([row("c")])
    assert [record.method for record in read_records(tmp_path)] == ["c"]
    with pytest.raises(RecordsError, match=r"this run has noise=0\.0"):
        RunFolder(tmp_path, SETTINGS).__enter__()


def test_failed_rows_of_a_preset_make_way_and_all_others_stay(tmp_path):
    failed = Record("digits", "a", 0, preset="v0.5", status="failed", reason="no such backbone")
    fine = Record("digits", "a", 0, preset="v0.4")
    with RunFolder(tmp_path, {}) as folder:
        for preset in ("v0.4", "v0.5"):
            claim(folder, preset, lr=1.0)
        folder.append([failed, fine])
    with RunFolder(tmp_path, {}) as folder:
        claim(folder, "v0.5", lr=3.0)
        assert folder.records == [fine]
        folder.append([Record("digits", "b", 0, preset="v0.5")])
        with pytest.raises(RecordsError, match=r"lr=1\.0, now 3\.0"):
            claim(folder, "v0.4", lr=3.0)
    assert {record.method for record in read_records(tmp_path)} == {"a", "b"}


def test_another_data_set_takes_the_place_of_failed_rows(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as run:
        run.claim_dataset("iris", {"n_rows": 10})
        run.append([row(status="failed")])
    with RunFolder(tmp_path, SETTINGS) as run:
        run.claim_dataset("iris", {"n_rows": 11})
    assert read_records(tmp_path) == []


@pytest.mark.parametrize("name", ["report.html", "results.csv"])
def test_a_report_of_somebody_else_is_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with (
        pytest.raises(RecordsError, match=f"has a {name}.*would replace it"),
        RunFolder(tmp_path, {}),
    ):
        pass
    assert (tmp_path / name).read_text() == "mine"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("years of work")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".lock").symlink_to(mine)
    with pytest.raises(ValueError, match="not a plain file"):
        lock_folder(tmp_path / "runs")
    assert mine.read_text() == "years of work"
