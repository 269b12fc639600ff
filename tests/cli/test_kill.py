"""Nothing is lost: kill -9 at any moment leaves the old model or the new one."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 20
pytestmark = pytest.mark.slow


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nearwise", *map(str, arguments)]
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


OPTIONS = "-t label --drop row --cv 2 --estimator none -q --n-neighbors 5 --overwrite"
CHANGES = {
    "fit": ("fit", "TRAIN", *OPTIONS.split(), "-o", "MODEL"),
    "add": ("add", "MODEL", "TEST", "-q"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_kill_9_leaves_the_old_model_or_the_new(tables, trained, tmp_path, predictions, change):
    def command(model):
        places = {"TRAIN": tables / "train.csv", "TEST": tables / "test.csv", "MODEL": model}
        return [places.get(word, word) for word in CHANGES[change]]

    model, new = tmp_path / "model", Path(shutil.copytree(trained, tmp_path / "new"))
    longest = seconds(*command(new))
    expected = {predictions(trained), predictions(new)}
    assert len(expected) == 2

    def prepare():
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(trained, model)

    def check():
        assert predictions(model) in expected

    kill_at_random(KILLS, longest, command(model), prepare, check)
    run(*command(model))  # the lock of a killed writer binds nobody
