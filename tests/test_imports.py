"""Imports run downwards only and never in circles, and `import nearwise` stays light."""

import ast
import functools
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import nearwise

SOURCE = Path(__file__).parents[1] / "src" / "nearwise"
LEVELS = (
    {"functional", "html"},
    {"memory", "nn", "metrics", "data"},
    {"training"},
    {"classifier"},
    {"probes", "serve"},
    {"cli"},
    # the lab builds on all of the library
    {"lab.comparisons"},
    {"lab.nn"},
    {
        "lab.corrupt",
        "lab.vit_files",
        "lab.interrupts",
        "lab.data",
        "lab.geometry",
        "lab.few_shot",
        "lab.retrieval",
        "lab.training",
        "lab.triton",
    },
    {"lab.results"},
    {"lab.probing", "lab.field_training"},
    {"lab.experiments"},
    {"lab.report", "lab.vit_runs"},
    {"lab.cli"},
)
RANK = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# pickle and its kin run code from a file; torchvision and timm fail beside a CPU torch.
BANNED = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "torchvision", "timm"}


@functools.cache
def parsed(source: str) -> ast.AST:
    """Parse a module, once for all tests."""
    return ast.parse(source)


def imported_modules(
    tree: ast.AST, package: tuple[str, ...], left_out: frozenset[ast.AST] = frozenset()
) -> list[tuple[int, str]]:
    """List (line, absolute dotted name) of every import, also those inside functions."""
    found = []
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *filter(None, [node.module])))
            # "from nearwise import memory" names a room in what is imported
            found += [(node.lineno, f"{start}.{alias.name}") for alias in node.names]
    return found


def room_of(parts: tuple[str, ...] | list[str]) -> str:
    """Name the room of a dotted name; the lab has rooms of its own."""
    return ".".join(parts[1:3]) if list(parts[1:2]) == ["lab"] else "".join(parts[1:2])


def faults(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """Tell what a module imports against the rules; `module` is its dotted name, split."""
    package = module if is_package else module[:-1]
    room = room_of(module)
    tree = parsed(source)
    out = []
    for line, name in imported_modules(tree, package):
        parts = name.split(".")
        if parts[0] in BANNED:
            out.append(f"line {line}: imports {parts[0]}, which the library never uses")
        if parts[0] != "nearwise" or len(parts) < 2:
            continue
        other = room_of(parts)
        if room in RANK and other != room and RANK.get(other, -1) >= RANK[room]:
            out.append(f"line {line}: {room} imports {name}, which is not below it")
        if room and room not in RANK and room != "lab" and other in RANK:
            out.append(f"line {line}: {room} imports {name}, and stands below every room")
        if module[1:2] != ("lab",) and other.startswith("lab"):
            out.append(f"line {line}: the library imports {name}")
    if module[1:2] != ("lab",):
        out += [
            f"line {node.lineno}: the library spells nearwise.lab"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and "nearwise.lab" in str(node.value)
        ]
    return out


def for_types(tree: ast.AST) -> frozenset[ast.AST]:
    """Find what is imported for type checkers alone."""
    return frozenset(
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
    )


def import_graph(sources: dict[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Which of the modules import which; of each its source, and whether it is a package."""
    graph = {}
    for name, (source, is_package) in sources.items():
        package = tuple(name.split("."))[: None if is_package else -1]
        found = set()
        tree = parsed(source)
        for _, imported in imported_modules(tree, package, for_types(tree)):
            while imported and imported not in sources:  # a name inside a module
                imported = imported.rpartition(".")[0]
            found.add(imported)
        graph[name] = found - {name, ""}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Find groups of modules that reach each other."""

    def reached(start: str) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    reach = {name: reached(name) for name in graph}
    found = [
        {name, *(other for other in reach[name] if name in reach[other])}
        for name in graph
        if name in reach[name]
    ]
    return [group for i, group in enumerate(found) if group not in found[:i]]


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_import_runs_downwards():
    found = {}
    for path in modules():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = parts[:-1] if is_package else parts
        found["/".join(parts)] = faults(path.read_text(encoding="utf-8"), name, is_package)
    assert len(found) > 100
    assert {path: lines for path, lines in found.items() if lines} == {}


ROOMS = [p.name for p in sorted(SOURCE.iterdir()) if p.is_dir() and p.name != "lab"]
ROOMS += [f"lab.{p.stem}" for p in sorted((SOURCE / "lab").iterdir()) if p.stem != "__init__"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_place_in_the_order(room: str):
    assert room in RANK or room.endswith("__pycache__")


def library_graph() -> dict[str, set[str]]:
    """Which modules of nearwise import which."""
    sources = {}
    for path in modules():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources[name] = path.read_text(encoding="utf-8"), is_package
    return import_graph(sources)


def test_no_modules_import_each_other():
    assert circles(library_graph()) == []


def test_the_walk_sees_a_circle_also_inside_functions_but_not_of_types():
    sources = {
        "nearwise.a": ("from nearwise.b.c import x", False),
        "nearwise.b": ("", True),
        "nearwise.b.c": ("def f():\n    from nearwise import d", False),
        "nearwise.d": ("from .a import y\nif TYPE_CHECKING:\n    import nearwise.e", False),
        "nearwise.e": ("import nearwise.d", False),
    }
    assert circles(import_graph(sources)) == [{"nearwise.a", "nearwise.b.c", "nearwise.d"}]


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("import nearwise.cli", ("nearwise", "functional", "search"), False),
        ("from nearwise import training", ("nearwise", "nn", "losses"), False),
        ("from ..classifier import query", ("nearwise", "memory", "bank"), False),
        ("from ..classifier import query", ("nearwise", "memory", "deep", "__init__"), False),
        ("from ..report import page", ("nearwise", "lab", "experiments"), True),
        ("from nearwise.cli import app", ("nearwise", "probes", "knn"), False),
        ("from nearwise import lab", ("nearwise", "cli", "app"), False),
        ("import nearwise.lab.report.page", ("nearwise", "cli", "app"), False),
        ("import_module('nearwise.lab.cli')", ("nearwise", "cli", "app"), False),
        ("from nearwise.memory import bank", ("nearwise", "names"), False),
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
    source = "from nearwise.cli.console import say\nimport nearwise.names"
    assert faults(source, ("nearwise", "lab", "cli", "report_command")) == []


OPTIONAL = (
    "matplotlib", "yaml", "skops", "lightgbm", "catboost", "transformers", "datasets",
    "PIL", "cleanlab", "openpyxl", "faiss", "typst", "triton",
)  # fmt: skip


def test_the_library_needs_no_extra_to_be_imported_and_the_page_of_evaluate_its_own_only():
    names = ["nearwise.lab.cli", "nearwise.lab.data", "nearwise.lab.probing"]  # nor do these
    for path in modules():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[1] != "lab" and parts[-1] not in ("__main__", "__init__"):
            names.append(".".join(parts))
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        # what the extra "report" brings
        "for name in ('matplotlib', 'PIL'): del sys.modules[name]\n"
        "from nearwise.conditions import load_plugin\n"
        "load_plugin('The page', 'nearwise.pages', 'evaluate')\n"
        "import nearwise.lab.report.model_page"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


API = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", nearwise.__all__)
def test_every_name_of_the_package_resolves_and_stands_in_its_documentation(name: str):
    assert getattr(nearwise, name) is not None
    assert name in dir(nearwise)
    head = API[: API.index("## AttnKNNClassifier")]
    assert f"`{name}`" in head


def test_a_name_that_the_package_does_not_have_raises():
    with pytest.raises(AttributeError, match="no attribute 'KNNClassifier'"):
        nearwise.KNNClassifier  # noqa: B018


@pytest.mark.parametrize("name", nearwise._IN_THE_LAB)
def test_a_name_that_moved_to_the_lab_says_so_and_is_there(name):
    with pytest.raises(AttributeError, match=f"`from nearwise.lab.nn import {name}`"):
        getattr(nearwise, name)
    assert getattr(import_module("nearwise.lab.nn"), name)


@pytest.mark.parametrize("what", ["import nearwise.cli", "import nearwise.lab.cli", "help"])
def test_the_package_and_the_help_of_its_command_do_not_load_torch(what):
    if what == "help":
        what = "from nearwise.cli.app import _add_plugins, app; _add_plugins()"
    code = (
        f"import sys, nearwise; {what}; "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
