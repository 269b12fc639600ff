"""The examples of docstrings print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.glob("nearwise/**/*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_print_what_they_show(name: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name.endswith("for_transformers"):
        pytest.importorskip("transformers")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
