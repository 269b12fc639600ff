"""The records of a folder: nothing lost, nothing mixed."""

import json
import multiprocessing
from dataclasses import asdict

import pytest
from nearwise_lab.records import (
    RECORDS_FILE,
    SETTINGS_FILE,
    Record,
    RecordsError,
    RunFolder,
    append_lines,
    as_line,
    lock_folder,
    read_lines,
    read_records,
)

SETTINGS = {"noise": 0.0, "noise_kind": "symmetric"}


def row(method="a", seed=0, **values):
    return Record("iris", method, seed, **values)


def written(folder, *records, settings=SETTINGS):
    with RunFolder(folder, settings) as run:
        run.append(records)


def methods(folder):
    return [r.method for r in read_records(folder)]


def test_a_record_survives_its_line():
    record = row(k=16, choice={"C": 1.0}, hardware={"cores": 2}, reason="ä\nb")
    line = as_line(asdict(record) | {"nll": float("inf"), "from_the_future": 1})
    assert line.count("\n") == 1
    assert Record.of(json.loads(line)) == record  # not finite became null


def test_rows_come_back_in_order(tmp_path):
    written(tmp_path, row("a"), row("b"))
    written(tmp_path, row("c"))
    assert methods(tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize("after", [-1, -10, -100, b"\0\0\0\n"])
def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path, after):
    written(tmp_path, row("a"), *[row("b")] * isinstance(after, int))
    path = tmp_path / RECORDS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:after] if isinstance(after, int) else whole + after)
    assert methods(tmp_path) == ["a"]
    written(tmp_path, row("c"))
    assert methods(tmp_path) == ["a", "c"]


@pytest.mark.parametrize("damage", [b"{not json}", b"[1]", b"\xff\xfe"])
def test_damage_before_the_last_line_is_refused(tmp_path, damage):
    written(tmp_path, row("a"), row("b"))
    path = tmp_path / RECORDS_FILE
    path.write_bytes(damage + b"\n" + path.read_bytes())
    for read in (read_lines, read_records, lambda folder: written(folder, row("c"))):
        with pytest.raises(RecordsError, match="line 1, is damaged"):
            read(tmp_path)


def append_records(folder, name):
    for i in range(200):
        append_lines(folder, [{"key": f"{name}{i}", "long": "x" * 30_000}])


def test_processes_side_by_side_add_whole_lines(tmp_path):
    forked = multiprocessing.get_context("fork")  # nothing is imported anew to append lines
    processes = [forked.Process(target=append_records, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    keys = {r["key"] for r in read_lines(tmp_path)}
    assert keys == {f"{name}{i}" for name in "ab" for i in range(200)}


def test_halves_without_their_whole_are_left_out(tmp_path):
    half = row("attention:base-alone", part_of="attention")
    written(tmp_path, half)
    assert read_records(tmp_path) == []
    written(tmp_path, half, row("attention"))
    assert methods(tmp_path) == ["attention:base-alone", "attention"]


def test_a_failed_row_is_run_again_and_replaced(tmp_path):
    written(tmp_path, row(status="failed", reason="no memory"))
    with RunFolder(tmp_path, SETTINGS) as run:
        assert run.finished() == set()
        run.append([row(nll=0.5)])
        assert run.finished() == {row().key}
    assert [r.status for r in read_records(tmp_path)] == ["ok"]


def test_other_settings_are_refused(tmp_path):
    written(tmp_path, row())
    with pytest.raises(RecordsError, match=r"other settings \(noise=0.0, now 0.3\)"):
        written(tmp_path, row("b"), settings=SETTINGS | {"noise": 0.3})
    assert methods(tmp_path) == ["a"]


def test_two_writers_are_refused(tmp_path):
    pytest.importorskip("fcntl")
    with RunFolder(tmp_path, SETTINGS), pytest.raises(RecordsError, match="another process is wr"):
        written(tmp_path, row())
    written(tmp_path, row())


@pytest.mark.parametrize("name", [RECORDS_FILE, "report.html", "results.csv"])
def test_a_foreign_folder_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(RecordsError, match=f"has a {name}.*was not made by.*would replace it"):
        written(tmp_path, row())
    assert (tmp_path / name).read_text() == "mine\n"


@pytest.mark.parametrize("settings", ["[]", "{}", "{"])
def test_a_damaged_settings_file_is_refused(tmp_path, settings):
    written(tmp_path, row())
    (tmp_path / SETTINGS_FILE).write_text(settings)
    with pytest.raises(RecordsError, match="damaged, or of another command"):
        written(tmp_path, row())


def test_records_of_another_form_are_refused(tmp_path):
    written(tmp_path, row())
    append_lines(tmp_path, [{"encoder": "pixels", "probe": "knn"}])
    with pytest.raises(RecordsError, match="line 2, is no record of a comparison"):
        read_records(tmp_path)


def test_an_empty_folder_says_what_to_pass(tmp_path):
    with pytest.raises(RecordsError, match="Pass a folder written by"):
        read_records(tmp_path)


def bind(folder, preset, **settings):
    folder.bind(f"settings of {preset}", settings, lambda record: record.preset == preset)


def test_other_values_of_a_name_are_refused_and_other_names_are_not(tmp_path):
    with RunFolder(tmp_path, {}) as folder:
        bind(folder, "v0.5", lr=1.0, sizes=(1, 2))
        folder.append([row(preset="v0.5")])
    with RunFolder(tmp_path, {}) as folder:
        bind(folder, "v0.5", lr=1.0, sizes=(1, 2))
        bind(folder, "v0.4", lr=2.0)
        with pytest.raises(RecordsError, match=r"other settings of v0.5 \(lr=1.0, now 3.0\)"):
            bind(folder, "v0.5", lr=3.0, sizes=[1, 2])


def test_a_folder_without_a_row_that_succeeded_is_bound_to_no_settings(tmp_path):
    written(tmp_path, row(status="failed", reason="out of memory"), row("b", status="failed"))
    with RunFolder(tmp_path, SETTINGS | {"noise": 0.3}) as run:
        assert run.records == []
        bind(run, "v0.5", lr=3.0)
        bind(run, "v0.5", lr=4.0)
        run.append([row("c")])
    assert methods(tmp_path) == ["c"]
    with pytest.raises(RecordsError, match=r"noise=0\.3, now 0\.0"):
        written(tmp_path, row())


def test_failed_rows_of_a_name_make_way_and_all_others_stay(tmp_path):
    failed = row(preset="v0.5", status="failed", reason="no such backbone")
    fine = row(preset="v0.4")
    with RunFolder(tmp_path, {}) as folder:
        for preset in ("v0.4", "v0.5"):
            bind(folder, preset, lr=1.0)
        folder.append([failed, fine])
    with RunFolder(tmp_path, {}) as folder:
        bind(folder, "v0.5", lr=3.0)
        assert folder.records == [fine]
        folder.append([row("b", preset="v0.5")])
        with pytest.raises(RecordsError, match=r"lr=1\.0, now 3\.0"):
            bind(folder, "v0.4", lr=3.0)
    assert methods(tmp_path) == ["a", "b"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("years of work")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".lock").symlink_to(mine)
    with pytest.raises(ValueError, match="not a plain file"):
        lock_folder(tmp_path / "runs")
    assert mine.read_text() == "years of work"
