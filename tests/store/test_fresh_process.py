"""What ``nearwise fit`` saves, every other command opens in a process of its own."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from nearwise.cli import main
from tests.store.folders import small_table

STEPS = """
from nearwise.cli import main

for arguments in (
    "verify m.model",
    "inspect m.model",
    "predict m.model new.csv --out p.csv --proba",
    "predict m.model new.csv --out why.jsonl --explain",
    "evaluate m.model new.csv --json scores.json --resamples 20",
    "add m.model new.csv",
    "inspect m.model --json",
):
    try:
        main(arguments.split())
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"{arguments} ended with {end.code}")
"""


QUICK = ("--cv", "2", "-q")


def write_tables(folder, n=80):
    frame, y = small_table(n)
    frame["label"] = y
    frame[:60].to_csv(folder / "train.csv", index=False)
    frame[60:].to_csv(folder / "new.csv", index=False)


def test_a_model_of_a_table_with_text_opens_in_every_command(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["fit", "train.csv", "-t", "label", "-o", "m.model", *QUICK])
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    proba = pd.read_csv("p.csv").filter(like="proba")
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    assert '"rows": 80' in done.stdout  # 60 that were fitted and 20 that were added
