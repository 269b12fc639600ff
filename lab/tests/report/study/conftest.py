"""One rendered report of made-up records for all tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nearwise_lab.report import render_report
from records import full_study


@pytest.fixture(scope="session")
def rendered(tmp_path_factory) -> Path:
    folder = full_study(tmp_path_factory.mktemp("study"))
    render_report(folder)
    return folder
