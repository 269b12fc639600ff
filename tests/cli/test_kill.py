"""Nothing is lost: kill -9 or Ctrl-C at any moment leaves the old model or the new one."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

KILLS = 20
pytestmark = pytest.mark.slow


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nearwise.cli", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run(*arguments: object) -> str:
    process = start(*arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def seconds(*arguments: object) -> float:
    begin = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - begin


def kill_after(process: subprocess.Popen[str], limit: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(limit)
    process.kill()
    process.communicate()


def kill_at_random(n_kills: int, longest: float, command, prepare, check) -> None:
    """Kill a command at moments spread over its whole run, and look at what it left."""
    moments = random.Random(0)
    for i in range(n_kills):
        prepare()
        process = start(*command)
        # the second half, where files change, gets three kills in four
        share = moments.uniform(0.5, 1.0) if i % 4 else moments.uniform(0.0, 0.5)
        kill_after(process, share * longest)
        check()


@pytest.fixture
def predictions(tables):
    def of(folder: Path) -> str:
        return run("predict", folder, tables / "new.csv", "--proba", "-q")

    return of


FIT = ("-t", "label", "--drop", "row", "--cv", "2", "--estimator", "none", "-q")


def test_kill_9_during_fit_leaves_the_old_model_or_the_new(tables, trained, tmp_path, predictions):
    model, new = tmp_path / "model", tmp_path / "new"
    other = (*FIT, "--n-neighbors", "5")
    command = ("fit", tables / "train.csv", "-o", model, *other, "--overwrite")
    longest = seconds("fit", tables / "train.csv", "-o", new, *other)
    expected = {predictions(trained), predictions(new)}
    assert len(expected) == 2

    def prepare():
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(trained, model)

    def check():
        assert predictions(model) in expected

    kill_at_random(KILLS, longest, command, prepare, check)


def test_kill_9_during_add_leaves_the_old_model_or_the_new(tables, trained, tmp_path, predictions):
    model, new = tmp_path / "model", Path(shutil.copytree(trained, tmp_path / "new"))
    longest = seconds("add", new, tables / "test.csv", "-q")
    expected = {predictions(trained), predictions(new)}
    assert len(expected) == 2

    def prepare():
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(trained, model)

    def check():
        assert predictions(model) in expected

    kill_at_random(KILLS, longest, ("add", model, tables / "test.csv", "-q"), prepare, check)
    run("add", model, tables / "test.csv", "-q")  # the lock of a killed writer binds nobody


def test_kill_9_during_changes_loses_none_that_was_acknowledged(tables, trained, tmp_path):
    model, moments = shutil.copytree(trained, tmp_path / "model"), random.Random(0)
    pd.read_csv(tables / "test.csv").head(2).to_csv(tmp_path / "more.csv", index=False)
    longest = seconds("add", model, tmp_path / "more.csv", "--key", "first")
    acknowledged = {"first"}
    for i in range(KILLS):
        process = start("add", model, tmp_path / "more.csv", "--key", f"add-{i}", "-q")
        kill_after(process, moments.uniform(0.5, 1.1) * longest)
        if process.returncode == 0:
            acknowledged.add(f"add-{i}")
        if i % 3 == 2:
            kill_after(start("compact", model, "-q"), moments.uniform(0.5, 1.1) * longest)
    history = json.loads(run("history", model, "--json"))
    assert [change["version"] for change in history] == list(range(1, len(history) + 1))
    keys = [change["key"] for change in history]
    assert acknowledged <= set(keys) and len(set(keys)) == len(keys)
    facts = json.loads(run("inspect", model, "--json"))
    assert facts["rows"] == 160 + 2 * len(keys)
    assert run("verify", model)


def test_a_killed_fit_resumes_to_the_result_of_an_unbroken_one(tmp_path):
    load_breast_cancer(as_frame=True).frame.to_csv(tmp_path / "train.csv", index=False)
    fit = ("fit", tmp_path / "train.csv", "-t", "target", "--estimator", "none", "-q")
    longest = seconds(*fit, "-o", tmp_path / "whole")
    for share in (0.5, 0.7, 0.9):
        process = start(*fit, "-o", tmp_path / "broken", "--resume")
        kill_after(process, share * longest)
    if not (tmp_path / "broken").exists():
        run(*fit, "-o", tmp_path / "broken", "--resume")
    proba = [
        run("predict", tmp_path / name, tmp_path / "train.csv", "--proba", "-q")
        for name in ("whole", "broken")
    ]
    assert proba[0] == proba[1]


def test_ctrl_c_during_fit_exits_130_and_leaves_no_half_model(tmp_path):
    load_breast_cancer(as_frame=True).frame.to_csv(tmp_path / "train.csv", index=False)
    fit = ("fit", tmp_path / "train.csv", "-t", "target", "--estimator", "none")
    longest = seconds(*fit, "-o", tmp_path / "whole", "-q")
    for share in (0.3, 0.6, 0.8):
        model = tmp_path / f"model-{share}"
        process = start(*fit, "-o", model)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(share * longest)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        if "Saved to" in err and process.returncode != 130:  # done; Python may be shutting down
            assert process.returncode in (0, -signal.SIGINT)
        else:
            assert process.returncode == 130
            assert "Stopped" in err
        assert "Traceback" not in err
        if model.exists():
            run("predict", model, tmp_path / "train.csv", "-q")
