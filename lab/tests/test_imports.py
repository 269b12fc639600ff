"""Imports of the lab run downwards only, and its commands load nothing heavy before they run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_imports import OPTIONAL, all_faults, circles, graph_of, rooms

SOURCE = Path(__file__).parents[1] / "src" / "nearwise_lab"
LEVELS = (
    {"comparisons", "records"},
    {"nn"},
    {
        "corrupt",
        "vit_files",
        "interrupts",
        "data",
        "geometry",
        "training",
    },
    {"results"},
    {"probing", "field_training"},
    {"experiments"},
    {"report", "vit_runs"},
    {"cli"},
)
RANK = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def test_every_import_runs_downwards():
    assert all_faults(SOURCE, RANK) == {}


@pytest.mark.parametrize("room", [*rooms(SOURCE), *(p.stem for p in SOURCE.glob("[!_]*.py"))])
def test_every_room_has_a_place_in_the_order(room: str):
    assert room in RANK


def test_no_modules_import_each_other():
    assert circles(graph_of(SOURCE)) == []


def test_commands_and_probes_need_no_extra_to_be_imported_and_the_page_of_evaluate_its_own_only():
    pytest.importorskip("matplotlib")
    optional = [name for name in OPTIONAL if name != "yaml"]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({optional!r}))\n"
        "for name in ('cli', 'data', 'probing'): importlib.import_module(f'nearwise_lab.{name}')\n"
        # what the extra "figures" brings
        "for name in ('matplotlib', 'PIL'): del sys.modules[name]\n"
        "from nearwise.conditions import load_plugin\n"
        "load_plugin('The page', 'nearwise.pages', 'evaluate')\n"
        "import nearwise_lab.report.compare, nearwise_lab.report.writers"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_help_of_its_commands_does_not_load_torch():
    code = (
        "import sys, nearwise_lab.cli; "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
