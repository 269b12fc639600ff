"""The command line as a user runs it, and a model that costs little."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import nearwise, tables
from tests.estimators.cases import fitted
from tests.estimators.conftest import pytest_itemcollected

__all__ = ["nearwise", "pytest_itemcollected", "tables"]


@pytest.fixture(scope="session")
def quick(tables) -> Path:
    """Give a model of train.csv; read it only (see `model`)."""
    frame = pd.read_csv(tables / "train.csv")
    fitted(frame[["width", "height", "color"]], frame["label"]).save(tables / "quick")
    return tables / "quick"


@pytest.fixture
def model(quick, tmp_path) -> Path:
    """Give a copy of the model that a test may change."""
    return Path(shutil.copytree(quick, tmp_path / "model"))
