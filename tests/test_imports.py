"""Imports run downwards only, and `import nearwise` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "nearwise"
LEVELS = (
    {"functional"},
    {"memory", "nn", "metrics", "data"},
    {"training"},
    {"estimators", "probes"},
    {"experiments"},
    {"report", "serve"},
    {"cli"},
)
RANK = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# pickle and its kin run code from a file; torchvision and timm fail beside a CPU torch.
BANNED = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "torchvision", "timm"}


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """List (line, absolute dotted name) of every import, also those inside functions."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *filter(None, [node.module])))
            # "from nearwise import memory" names a room in what is imported
            found += [(node.lineno, f"{start}.{alias.name}") for alias in node.names]
    return found


def faults(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """Tell what a module imports against the rules; `module` is its dotted name, split."""
    package = module if is_package else module[:-1]
    room = module[1] if len(module) > 1 else ""
    out = []
    for line, name in imported_modules(ast.parse(source), package):
        parts = name.split(".")
        if parts[0] in BANNED:
            out.append(f"line {line}: imports {parts[0]}, which the library never uses")
        if parts[0] != "nearwise" or len(parts) < 2 or room not in RANK or parts[1] == room:
            continue
        other = parts[1]
        if other in RANK and RANK[other] >= RANK[room]:
            out.append(f"line {line}: {room} imports {name}, which is not below it")
    return out


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_import_runs_downwards(path: Path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = parts[:-1] if is_package else parts
    assert faults(path.read_text(encoding="utf-8"), name, is_package) == []


@pytest.mark.parametrize("room", [p.name for p in sorted(SOURCE.iterdir()) if p.is_dir()])
def test_every_room_has_a_place_in_the_order(room: str):
    assert room in RANK or room == "__pycache__"


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("import nearwise.cli", ("nearwise", "functional", "search"), False),
        ("from nearwise import training", ("nearwise", "nn", "losses"), False),
        ("from ..estimators import base", ("nearwise", "memory", "bank"), False),
        ("from ..estimators import base", ("nearwise", "memory", "deep", "__init__"), False),
        ("from ..report import html", ("nearwise", "experiments"), True),
        ("from nearwise.nn import x", ("nearwise", "memory", "bank"), False),
        ("def f():\n    from nearwise.cli import app", ("nearwise", "metrics", "a"), False),
        ("import pickle", ("nearwise", "memory", "store"), False),
    ],
)
def test_the_walk_sees_an_upward_or_banned_import(source, module, is_package):
    if module[-1] == "__init__":
        source = source.replace("..", "...")
    assert faults(source, module, is_package)


def test_the_walk_accepts_downward_and_own_imports():
    source = "from nearwise.functional import topk\nfrom . import bank\nimport nearwise.memory.x"
    assert faults(source, ("nearwise", "memory", "index")) == []


def test_importing_the_package_and_the_cli_does_not_load_torch():
    code = (
        "import sys, nearwise, nearwise.cli; "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
