"""Imports run downwards only and never in circles, and `import nearwise` stays light."""

import ast
import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import networkx
import pytest

import nearwise

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nearwise"
LEVELS = (
    {"functional"},
    {"memory", "nn", "metrics", "data"},
    {"html"},
    {"training"},
    {"estimators"},
    {"probes", "serve"},
    {"cli"},
    {"__main__"},  # python -m nearwise
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


def faults(
    source: str, module: tuple[str, ...], is_package: bool = False, rank: Mapping[str, int] = RANK
) -> list[str]:
    """Tell what a module imports against the rules; `module` is its dotted name, split.

    `rank` orders the rooms of its own package.
    """
    package = module if is_package else module[:-1]
    room = "".join(module[1:2])
    out = []
    for line, name in imported_modules(parsed(source), package):
        parts = name.split(".")
        if parts[0] in BANNED:
            out.append(f"line {line}: imports {parts[0]}, which is never used here")
        if parts[0] == "nearwise_lab" != module[0]:
            out.append(f"line {line}: the library imports {name}")
        if parts[0] != module[0] or len(parts) < 2:
            continue
        other = parts[1]
        if room in rank and other != room and rank.get(other, -1) >= rank[room]:
            out.append(f"line {line}: {room} imports {name}, which is not below it")
        if room and room not in rank and other in rank:
            out.append(f"line {line}: {room} imports {name}, and stands below every room")
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

    groups = networkx.strongly_connected_components(networkx.DiGraph(graph))
    return [group for group in groups if len(group) > 1]


def sources(folder: Path) -> dict[tuple[str, ...], tuple[str, bool]]:
    """Source of every module by its dotted name, split, and whether it is a package."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = parts[:-1] if is_package else parts
        found[name] = path.read_text(encoding="utf-8"), is_package
    return found


def all_faults(folder: Path, rank: Mapping[str, int]) -> dict[str, list[str]]:
    """Faults of every module of a package that has any."""
    found = {
        "/".join(name): faults(source, name, is_package, rank)
        for name, (source, is_package) in sources(folder).items()
    }
    assert len(found) > 100
    return {name: lines for name, lines in found.items() if lines}


def rooms(folder: Path) -> list[str]:
    """Folders of a package."""
    return [path.parent.name for path in sorted(folder.glob("*/__init__.py"))]


def graph_of(folder: Path) -> dict[str, set[str]]:
    """Which modules of a package import which."""
    return import_graph({".".join(name): found for name, found in sources(folder).items()})


def test_every_import_runs_downwards():
    assert all_faults(SOURCE, RANK) == {}


def test_nothing_in_the_library_spells_the_lab():
    spelled = {
        ".".join(name)
        for name, (source, _) in sources(SOURCE).items()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Constant) and "nearwise_lab" in str(node.value)
    }
    assert spelled == set()


def test_no_test_of_the_library_imports_the_lab():
    """The tests of the lab build on these; what is built from the sources has these alone."""
    files = [ROOT / "conftest.py", *sorted((ROOT / "tests").rglob("*.py"))]
    found = {
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in imported_modules(parsed(path.read_text(encoding="utf-8")), ("tests",))
        if name.split(".")[0] in ("nearwise_lab", "lab")
    }
    assert len(files) > 200 and found == set()


@pytest.mark.parametrize("room", rooms(SOURCE))
def test_every_room_has_a_place_in_the_order(room: str):
    assert room in RANK


def test_no_modules_import_each_other():
    assert circles(graph_of(SOURCE)) == []


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
        ("from ..estimators import query", ("nearwise", "memory", "bank"), False),
        ("from ..estimators import query", ("nearwise", "memory", "deep", "__init__"), False),
        ("from nearwise.cli import app", ("nearwise", "probes", "knn"), False),
        ("import nearwise_lab.report.writers", ("nearwise", "cli", "app"), False),
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


OPTIONAL = (
    "matplotlib", "yaml", "skops", "lightgbm", "catboost", "transformers", "datasets",
    "PIL", "cleanlab", "openpyxl", "faiss", "typst",
)  # fmt: skip


def test_the_library_needs_no_extra_to_be_imported_but_the_service_its_own():
    pytest.importorskip("fastapi")
    names = [".".join(name) for name, _ in sources(SOURCE).items() if name[-1] != "__main__"]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


API = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", nearwise.__all__)
def test_every_name_of_the_package_resolves_and_stands_in_its_documentation(name: str):
    assert getattr(nearwise, name) is not None
    assert name in dir(nearwise)
    head = API[: API.index("## AttnKNNClassifier")]
    assert f"`{name}`" in head


def test_a_name_that_the_package_does_not_have_raises():
    with pytest.raises(AttributeError, match="no attribute 'KNNClassifier'"):
        nearwise.KNNClassifier  # noqa: B018


@pytest.mark.parametrize("what", ["import nearwise.cli", "help"])
def test_the_package_and_the_help_of_its_command_do_not_load_torch(what):
    if what == "help":
        what = "from nearwise.cli.app import _add_plugins, app; _add_plugins()"
    code = (
        f"import sys, nearwise; {what}; "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
