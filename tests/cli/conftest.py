"""Run the command line as a user does, in this process."""

import io
import json
import shutil
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nearwise.cli import main


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    exit_code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    def table(self) -> pd.DataFrame:
        """Standard output as CSV."""
        return pd.read_csv(io.StringIO(self.out))


@pytest.fixture
def nearwise(capfdbinary, monkeypatch):
    """Give a function that runs ``nearwise ARGUMENT ...`` and returns a `Result`."""
    monkeypatch.setenv("COLUMNS", "120")
    # main() shows warnings in its own way; undone here after the test
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        code = ended.value.code
        return Result(
            code if isinstance(code, int) else int(bool(code)), out.decode(), err.decode()
        )

    return run


def make_table(n_rows: int, seed: int) -> pd.DataFrame:
    """Two numbers, a category and missing cells; the label follows the first two columns."""
    rng = np.random.default_rng(seed)
    width, color = rng.normal(size=n_rows), rng.choice(["red", "green", "blue"], n_rows)
    score = width + 1.5 * (color == "red") + rng.normal(scale=0.4, size=n_rows)
    frame = pd.DataFrame(
        {
            "row": [f"r{seed}-{i}" for i in range(n_rows)],
            "width": width.round(4),
            "height": rng.normal(size=n_rows).round(4),
            "color": color,
            "label": np.where(score > 0.5, "yes", "no"),
        }
    )
    frame.loc[:: max(2, n_rows // 8), "height"] = np.nan
    frame.loc[1 :: max(2, n_rows // 8), "color"] = None
    return frame


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """Give a folder with train.csv (with an id), test.csv and new.csv (without the label)."""
    folder = tmp_path_factory.mktemp("tables")
    make_table(160, 0).to_csv(folder / "train.csv", index=False)
    make_table(60, 1).to_csv(folder / "test.csv", index=False)
    make_table(20, 2).drop(columns="label").to_csv(folder / "new.csv", index=False)
    return folder


@pytest.fixture(scope="session")
def trained(tables) -> Path:
    """Give a model made by ``nearwise fit``; read it only (see `model`)."""
    folder = tables / "trained"
    arguments = ["fit", tables / "train.csv", "--target", "label", "--out", folder]
    options = ["--drop", "row", "--cv", "2", "--estimator", "none", "--quiet"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        main([*map(str, arguments), *options])
    assert not ended.value.code
    return folder


@pytest.fixture
def model(trained, tmp_path) -> Path:
    """Give a copy of the model that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "model"))
