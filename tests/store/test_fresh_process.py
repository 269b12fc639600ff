"""What ``nearwise fit`` saves, every other command opens in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.store.folders import small_table

STEPS = """
import sys
from nearwise.cli import main

for arguments in (
    "fit train.csv -t label -o m.model {options} -q",
    "verify m.model",
    "inspect m.model",
    "predict m.model new.csv --out p.csv --proba",
    "predict m.model new.csv --out why.jsonl --explain",
    "evaluate m.model new.csv --json scores.json",
    "add m.model new.csv",
    "inspect m.model --json",
):
    if sys.argv[1] == "fit" and not arguments.startswith("fit"):
        break
    if sys.argv[1] == "rest" and arguments.startswith("fit"):
        continue
    try:
        main(arguments.split())
    except SystemExit as end:
        if end.code:
            sys.exit(f"{{arguments}} ended with {{end.code}}")
"""


def run(folder: Path, part: str, options: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", STEPS.format(options=options), part],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )


def write_tables(folder, n=80):
    frame, y = small_table(n)
    frame["label"] = y
    frame[:60].to_csv(folder / "train.csv", index=False)
    frame[60:].to_csv(folder / "new.csv", index=False)


@pytest.mark.parametrize("options", ["--members 2"])
def test_a_model_of_a_table_with_text_opens_in_every_command(options, tmp_path):
    write_tables(tmp_path)
    for part in ("fit", "rest"):
        done = run(tmp_path, part, options)
        assert done.returncode == 0, done.stderr
    proba = pd.read_csv(tmp_path / "p.csv").filter(like="proba")
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    assert '"rows": 80' in done.stdout  # 60 that were fitted and 20 that were added
