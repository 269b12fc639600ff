"""Every row of the study has a command that is understood, tests and a record that exist."""

import re
from pathlib import Path

import pytest
from nearwise_lab.data import dataset_names
from nearwise_lab.experiments.study import PRESETS
from nearwise_lab.experiments.study.presets import CORRECTED

LAB = Path(__file__).parents[3]
PAGE = LAB / "docs" / "experiments.md"
TABLE = PAGE.read_text(encoding="utf-8").split("## Row by row")[1].split("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| row of")
]
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in LAB.glob("tests/**/test_*.py"))


def test_no_cell_is_empty():
    assert len(ROWS) > 20
    assert all(len(row) == 4 and all(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_what_there_is(row):
    _, command, tests, record = row
    experiment, data, preset = re.match(r"`E ([\w-]+) -d ([\w-]+) -p ([\w.-]+)", command).groups()
    assert data in dataset_names()
    assert preset in (*PRESETS, CORRECTED)
    assert f"| `{experiment}` |" in PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)`", tests):
        assert f"def {name}(" in TESTS
    for path in re.findall(r"\]\(([^)#]+\.json)\)", record):
        assert (PAGE.parent / path).is_file()
