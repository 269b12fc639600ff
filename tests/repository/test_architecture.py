"""The map of the house names what exists, and all of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "nearwise"
MAP = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def rooms_in(text: str) -> set[str]:
    """Names in the first column of the table of rooms."""
    table = re.search(r"\| room \|.*?\n\n", text, re.DOTALL)
    assert table, "no table of rooms"
    return set(re.findall(r"^\| `(\w+)` \|", table[0], re.MULTILINE))


@pytest.mark.parametrize("text", [MAP, CONTRIBUTING], ids=["architecture.md", "CONTRIBUTING.md"])
def test_every_room_is_named_and_every_room_named_exists(text):
    there = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms_in(text) == there


def test_the_rooms_of_the_classifier_are_named():
    table = MAP[MAP.index("| room of `estimators` |") :]
    named = set(re.findall(r"^\| `(\w+)` \|", table[: table.index("\n\n")], re.MULTILINE))
    assert named == {path.parent.name for path in (SOURCE / "estimators").glob("*/__init__.py")}


def test_every_file_that_the_map_names_exists():
    names = set(re.findall(r"`([\w/]+\.py)`", MAP))
    assert len(names) > 30
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")]
    missing = [n for n in names if not any(f == n or f.endswith(f"/{n}") for f in files)]
    assert missing == []


def test_every_module_beside_the_rooms_is_named():
    there = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert there == {name for name in there if f"`{name}`" in MAP}
