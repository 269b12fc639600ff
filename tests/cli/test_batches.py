"""``--engine ray``: parts equal one process, are kept, and never mixed with those of other runs."""

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from nearwise.cli.batches.parts import MANIFEST, left_to_make, parts_of_tables
from nearwise.cli.batches.worker import Job, Worker, open_pinned
from nearwise.cli.commands.embed import Keys
from nearwise.cli.models import open_model, pin_of
from nearwise.cli.rows.image_rows import ImageOptions
from nearwise.data.tables import pieces
from nearwise.data.tables.files import read_table
from nearwise.data.tables.pieces import table_files
from tests.cli.conftest import make_table

ASKED = ("--proba", "--keep", "row", "--sets", "--novelty", "--coverage", "0.8", "--explain")
RAY = ("--engine", "ray", "--workers", "2")


@pytest.fixture(scope="module")
def cluster():
    """Start Ray once; commands of this process use it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=128 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Give a folder of tables in two formats, with a file that is none."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "more").mkdir()
    for i in range(3):
        make_table(20 + i, 10 + i).to_csv(folder / f"t{i}.csv", index=False)
    make_table(30, 20).to_parquet(folder / "more" / "p.parquet", row_group_size=8, index=False)
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture
def batch(cluster, nearwise, trained, many, tmp_path) -> Path:
    """Give a copy of the parts of a run."""
    made = many.with_name("made")
    if not made.exists():
        result = nearwise("predict", trained, many, *RAY, "--out", made, *ASKED)
        assert result.exit_code == 0, result.err
        assert "Wrote 93 rows in 4 parts" in result.err
        assert result.err.count("the model has no 'label'") == 0
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_two_workers_equal_one_process(nearwise, batch, trained, many, tmp_path):
    found = sorted(batch.glob("*.parquet"))
    for part, file in zip(found, table_files(many), strict=True):
        out = tmp_path / "one.parquet"
        assert nearwise("predict", trained, file, "-q", "-o", out, *ASKED).exit_code == 0
        one, parts = pd.read_parquet(out), pd.read_parquet(part)
        assert file.stem in part.name
        pd.testing.assert_frame_equal(parts, one, rtol=0, atol=1e-6)
    assert {"row", "accepted", "set", "novelty_p", "neighbor_5_id"} <= set(parts.columns)


def test_a_second_run_makes_only_what_is_missing(nearwise, batch, trained, many):
    parts = sorted(batch.glob("*.parquet"))
    expected = {part: part.read_bytes() for part in parts}
    kept = {part: part.stat().st_mtime_ns for part in parts[1:]}
    parts[0].unlink()
    (batch / ".torn.tmp").touch()
    result = nearwise("predict", trained, many, *RAY, "--out", batch, *ASKED)
    assert result.exit_code == 0, result.err
    assert "3 of 4 parts are there already" in result.err
    assert {part: part.stat().st_mtime_ns for part in parts[1:]} == kept
    assert {part: part.read_bytes() for part in parts} == expected
    assert not (batch / ".torn.tmp").exists()
    again = nearwise("predict", trained, many, *RAY, "--out", batch, *ASKED)
    assert "Wrote 0 rows in 0 parts" in again.err


def test_other_settings_are_refused_by_name(nearwise, batch, trained, many):
    before = {path: path.stat().st_mtime_ns for path in batch.iterdir()}
    result = nearwise("predict", trained, many, *RAY, "--out", batch, *ASKED[1:])
    assert result.exit_code == 2
    assert "proba was True, is False" in result.err
    assert "choose another --out" in result.err
    assert {path: path.stat().st_mtime_ns for path in batch.iterdir()} == before


def test_a_model_that_has_changed_is_refused(nearwise, batch, trained, model, many, tables):
    pytest.importorskip("ray")
    same = nearwise("predict", model, many, *RAY, "--out", batch, *ASKED)
    assert same.exit_code == 0, same.err  # a copy is the same model
    assert nearwise("add", model, tables / "test.csv", "-q").exit_code == 0
    result = nearwise("predict", model, many, *RAY, "--out", batch, *ASKED)
    assert result.exit_code == 2
    assert "model was 'version 0 of" in result.err
    assert "is 'version 1 of" in result.err


def test_a_worker_that_opens_another_version_says_so(nearwise, model, tables):
    pin = pin_of(open_model(model), model)
    assert pin_of(open_pinned(model, pin), model) == pin
    assert nearwise("add", model, tables / "test.csv", "-q").exit_code == 0
    with pytest.raises(ValueError, match=r"is version 1 of .* the run began with version 0 of"):
        open_pinned(model, pin)


def test_bad_files_are_named_and_the_others_made(cluster, nearwise, trained, tables, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    shutil.copy(tables / "new.csv", data / "a.csv")
    (data / "empty.csv").touch()
    result = nearwise("predict", trained, data, "--engine", "ray", "--workers", "1", "--out", out)
    assert result.exit_code == 2
    assert "1 of 2 parts were not made" in result.err
    assert f"{data / 'empty.csv'} is empty" in result.err
    assert "the model has no 'row'; ignored" in result.err
    assert [part.name for part in out.glob("*.parquet")] == ["000000-00000-of-00001-a.parquet"]
    shutil.copy(tables / "new.csv", data / "empty.csv")
    mended = nearwise("predict", trained, data, "--engine", "ray", "--workers", "1", "--out", out)
    assert mended.exit_code == 0, mended.err
    first, second = (pd.read_parquet(part) for part in sorted(out.glob("*.parquet")))
    pd.testing.assert_frame_equal(first, second)


def test_keys_equal_one_process(cluster, nearwise, trained, tables, tmp_path):
    new, parts, npz = tables / "new.csv", tmp_path / "parts", tmp_path / "k.npz"
    one = ("--engine", "ray", "--workers", "1")
    assert nearwise("embed", trained, new, *one, "--out", parts, "--keep", "row").exit_code == 0
    assert nearwise("embed", trained, new, "--out", npz, "--keep", "row").exit_code == 0
    (part,) = parts.glob("*.parquet")
    found, arrays = pd.read_parquet(part), np.load(npz)
    frame = read_table(new)
    expected = open_model(trained).keys(frame.drop(columns="row")).numpy()
    np.testing.assert_allclose(arrays["X"], expected, atol=1e-6)
    np.testing.assert_allclose(found.drop(columns="row").to_numpy(), expected, atol=1e-6)
    assert list(found["row"]) == arrays["row"].tolist() == list(frame["row"])
    assert list(found.columns[1:]) == [f"e{i}" for i in range(expected.shape[1])]


def test_keys_are_a_table_for_readers_of_csv(nearwise, trained, tables):
    result = nearwise("embed", trained, tables / "new.csv", "--out", "-", "--keep", "row")
    assert result.exit_code == 0
    assert result.out.startswith("row,e0,e1")
    assert nearwise("embed", trained, tables / "new.csv", "-o", "k.png").exit_code == 2
    unknown = nearwise("embed", trained, tables / "new.csv", "-o", "-", "--space", "nowhere")
    assert unknown.exit_code == 2
    assert "features" in unknown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "-"), "reads files and writes a folder"),
        (("--out", "o", "--format", "csv"), "writes Parquet"),
        (("--out", "o", "--explain", "--neighbors", "0"), "Say how many"),
        (("--out", "o", "--resize"), "--resize is for images"),
        (("more.csv", "--out", "o"), "give one, or a folder of them"),
    ],
    ids=str,
)
def test_what_parts_cannot_hold_is_refused(
    nearwise, trained, tables, arguments, said, tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    result = nearwise("predict", trained, tables / "new.csv", "--engine", "ray", *arguments)
    assert result.exit_code == 2
    assert said in result.err
    assert not list(tmp_path.iterdir())


def test_options_of_ray_are_refused_without_it(nearwise, trained, tables):
    result = nearwise("predict", trained, tables / "new.csv", "--workers", "2")
    assert result.exit_code == 2
    assert "--workers is for --engine ray" in result.err


def test_the_extra_is_named_where_ray_is_missing(nearwise, trained, tables, tmp_path, monkeypatch):
    monkeypatch.setattr("nearwise.conditions.find_spec", lambda name: None)
    result = nearwise("predict", trained, tables / "new.csv", *RAY, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "pip install nearwise[ray]" in result.err


# --- the folder of parts ----------------------------------------------------------------------


def test_a_folder_of_something_else_is_left_alone(tmp_path, many):
    parts = parts_of_tables(str(many))
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="not parts of a run"):
        left_to_make(out, parts, [many], {})
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(ValueError, match="is a file"):
        left_to_make(out / "mine.txt", parts, [many], {})
    with pytest.raises(ValueError, match="which is read"):
        left_to_make(many / "out", parts, [many], {})
    (out / "mine.txt").rename(out / MANIFEST)
    with pytest.raises(ValueError, match="damaged"):
        left_to_make(out, parts, [many], {})


def test_files_that_changed_under_finished_parts_are_refused(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in ("a.csv", "b.csv"):
        (data / name).write_text("x\n1\n")
    parts = parts_of_tables(str(data))
    assert left_to_make(out, parts, [data], {}) == parts
    (out / parts[0].name).touch()
    (data / "b.csv").write_text("x\n2\n3\n")
    assert left_to_make(out, parts, [data], {}) == parts[1:]
    (data / "a.csv").write_text("x\n2\n3\n")
    with pytest.raises(ValueError, match=r"changed: .*a\.csv\."):
        left_to_make(out, parts, [data], {})
    (data / "c.csv").write_text("x\n1\n")
    with pytest.raises(ValueError, match=r"new: .*c\.csv"):
        left_to_make(out, parts_of_tables(str(data)), [data], {})


def test_parts_sort_as_their_rows_do(many, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_ROWS", 8)
    names = [part.name for part in parts_of_tables(str(many))]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


def test_a_piece_without_rows_is_a_part_without_rows(trained, tables, tmp_path, monkeypatch):
    pin, new = pin_of(open_model(trained), trained), str(tables / "new.csv")
    images = ImageOptions()
    job = Job(Keys("features"), trained, pin, tmp_path, ("row",), images, None, Path.cwd())
    worker = Worker(job)
    rows = []
    for i in range(30):
        part = {"name": f"{i}.parquet", "files": [new], "piece": i, "n_pieces": 30}
        result = worker({"part": [json.dumps(part)]})
        assert result["error"] == [""]
        rows += pd.read_parquet(tmp_path / f"{i}.parquet")["row"].tolist()
    assert rows == read_table(new)["row"].tolist()


# --- killed -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_9_of_the_driver_leaves_whole_parts_to_go_on_from(trained, tables, tmp_path):
    pytest.importorskip("ray")
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for i in range(60):
        make_table(400, i).to_csv(data / f"{i:02}.csv", index=False)
    command = [sys.executable, "-m", "nearwise.cli", "predict", trained, data, *RAY, "--explain"]
    begun = subprocess.Popen([*command, "--out", out], start_new_session=True)
    try:
        limit = time.monotonic() + 120
        while len(list(out.glob("*.parquet"))) < 5:
            assert begun.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
        begun.kill()
        begun.wait()
        kept = {part: part.stat().st_mtime_ns for part in out.glob("*.parquet")}
        time.sleep(5)  # its workers end with it
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGKILL)
    assert len(kept) < 60
    assert all(pq.read_table(part).num_rows == 400 for part in kept)
    ended = subprocess.run([*command, "--out", out], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "of 60 parts are there already" in ended.stderr
    assert all(part.stat().st_mtime_ns == when for part, when in kept.items())
    assert sum(pq.read_metadata(part).num_rows for part in out.glob("*.parquet")) == 60 * 400


@pytest.mark.slow
def test_a_part_that_kills_its_process_is_given_up(
    cluster, nearwise, trained, tables, tmp_path, monkeypatch
):
    class Dying(Worker):
        def _make(self, part):
            if "bad" in part.name:
                os._exit(1)
            return super()._make(part)

    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in ("bad", "good"):
        shutil.copy(tables / "new.csv", data / f"{name}.csv")
    monkeypatch.setattr("nearwise.cli.batches.ray_engine.Worker", Dying)
    result = nearwise("predict", trained, data, *RAY, "--out", out)
    assert result.exit_code == 2
    assert "bad.csv: this part's process was killed 3 times" in result.err
    assert [part.name[-12:] for part in out.glob("*.parquet")] == ["good.parquet"]
    assert not list(out.glob("*.tmp"))


@pytest.mark.slow
def test_images_equal_one_process(cluster, nearwise, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 180)):
        (tmp_path / "train" / label).mkdir(parents=True)
        for i in range(20):
            pixels = rng.normal(level, 20, (8, 8)).clip(0, 255).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "train" / label / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    fit = ("--out", "m", "--preset", "fast", "--cv", "2", "--base", "none", "-q")
    assert nearwise("fit", "train", *fit).exit_code == 0
    monkeypatch.setattr("nearwise.cli.batches.parts.IMAGES_PER_PART", 15)
    assert nearwise("predict", "m", "train", *RAY, "--out", "out", "--proba").exit_code == 0
    assert nearwise("predict", "m", "train", "--out", "one.parquet", "--proba").exit_code == 0
    parts = [pd.read_parquet(part) for part in sorted(Path("out").glob("*.parquet"))]
    assert [len(part) for part in parts] == [15, 15, 10]
    one = pd.read_parquet("one.parquet")
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), one, rtol=0, atol=1e-6)
