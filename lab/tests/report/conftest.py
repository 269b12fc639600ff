"""Make the stand-ins of lab/tests/experiments importable; small folders for all tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from fakes import attention, bayes, blobs, broken
from nearwise_lab.experiments import compare
from nearwise_lab.report import render_report

from lab.tests.report.records import full_study


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> Path:
    """Two data sets, three methods of which one fails, three seeds."""
    folder = tmp_path_factory.mktemp("compared")
    methods = [bayes("bayes <1>"), attention(), broken()]
    data = [blobs(spread=3.0), blobs("more & less", n_classes=4, spread=3.0, seed=1)]
    compare(data, methods, range(3), folder, progress=False, command="a test")
    return folder


@pytest.fixture
def one_seed(tmp_path) -> Path:
    compare([blobs(spread=3.0)], [bayes(), attention()], [0], tmp_path, progress=False)
    return tmp_path


@pytest.fixture(scope="session")
def rendered(tmp_path_factory) -> Path:
    """A study of made-up records with every form of its report."""
    folder = full_study(tmp_path_factory.mktemp("study"))
    render_report(folder)
    return folder
