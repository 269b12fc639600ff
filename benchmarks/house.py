"""Measure the code base, and refuse that it grows: its size, the paths of a row, its choices.

    python benchmarks/house.py             # every measure beside its record and its target
    python benchmarks/house.py --record    # write benchmarks/results/house.json

Sizes, kinds and words are read from source and docs. Paths are counted by a profiler in the second
fit, prediction and save of iris (three folds), in which nothing is imported any more. A measure
that has fallen is recorded. One that has risen is recorded once `[Unreleased]` in CHANGELOG.md has
a section `### House` with a line for it, which `tests/repository/test_house.py` demands too:

    - library lines 46,000 -> 46,120: ridge regression as a base of embeddings
"""

import argparse
import ast
import functools
import inspect
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nearwise"
LAB = ROOT / "lab" / "src" / "nearwise_lab"
RECORD = ROOT / "benchmarks" / "results" / "house.json"
CHANGELOG = ROOT / "CHANGELOG.md"
TARGETS: dict[str, float | None] = {
    "library lines": 46_000,
    "library modules": 230,
    "lab lines": 16_000,
    "tests lines": 40_000,
    "benchmarks lines": 6_000,
    "docs lines": None,
    "public names of packages": None,
    "lines of the longest function": None,
    "hard dependencies": 9,
    "files flat in the largest room": 12,
    "fit: files": 40,
    "fit: hops between files": None,
    "predict_proba, one row: files": 17,
    "predict_proba, one row: hops between files": 80,
    "save: files": 26,
    "save: hops between files": None,
    "load: files": 26,
    "load: hops between files": None,
    "passes over the rows with all flags": 1,
    "searches beyond those of a prediction, with all flags": 0,
    "our classes in the MRO of the classifier": 1,
    "isinstance on kinds of rows": 3,
    "heads": 1,
    "memory views": 1,
    "pipelines": 1,
    "reaches into privates of the classifier": 0,
    "constructor parameters": 18,
    "settings of a fit": None,
    "settings of a training": None,
    "public names of the classifier": 36,
    "rows held out once, in docs": 5,
    "files that know label noise": 8,
    "training loops in the library": 1,
    "variables called place, told or asked": 0,
    "lines that say stranger": 0,
}
# Shown, but refused elsewhere (`tests/test_imports.py`) or nowhere, as it is timed.
SHOWN: dict[str, float | None] = {
    "circles of imports": 0,
    "import of the classifier, times torch and scikit-learn": 1.5,
}
VAGUE = ("place", "told", "asked")
NOISE = re.compile(r"label_noise|transition|\bnoise\b|doubt", re.IGNORECASE)
HELD_OUT_ONCE = re.compile(r"\bh[eo]ld\S*(?: \S+){0,2} out once|\bheld-out-once")
KINDS = re.compile(
    r"(Table|Image)(Encoder|Networks|Models)|Encoded\w*|Stored(Table|Images)|\w*Views|\w*Rows"
)
EXCUSE = re.compile(r"^- (?P<measure>.+) (?P<before>[\d,.]+) -> (?P<after>[\d,.]+): (?P<why>\S.*)$")


def modules(source: Path = SOURCE) -> list[Path]:
    """Source files of the library, or of the lab."""
    return sorted(source.rglob("*.py"))


def lines_in(paths: Iterator[Path] | list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def names_in(package: Path) -> int:
    """Names that a package lists in `__all__`."""
    tree = ast.parse(package.read_text(encoding="utf-8"))
    listed = [node.value for node in tree.body if isinstance(node, ast.Assign)
              and last_name(node.targets[0]) == "__all__"]  # fmt: skip
    return sum(len(one.elts) for one in listed if isinstance(one, ast.List))


def longest_function(path: Path) -> int:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return max(((one.end_lineno or 0) - one.lineno + 1 for one in functions), default=0)


def sizes() -> dict[str, float]:
    rooms = Counter(path.parent for path in modules() if path.name != "__init__.py")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "lab" / "tests").rglob("*.py")]
    return {
        "library lines": lines_in(modules()),
        "library modules": len(modules()),
        "lab lines": lines_in(modules(LAB)),
        "tests lines": lines_in(tests),
        "benchmarks lines": lines_in((ROOT / "benchmarks").glob("*.py")),
        "docs lines": lines_in(
            [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/**/*.md")]
        ),
        "public names of packages": sum(map(names_in, SOURCE.rglob("__init__.py"))),
        "lines of the longest function": max(map(longest_function, modules() + modules(LAB))),
        "hard dependencies": len(project["dependencies"]),
        "files flat in the largest room": max(rooms.values()),
    }


@functools.cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Walk through a tree, once for all measures."""
    return list(ast.walk(tree))


def bound_names(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def last_name(node: ast.AST | None) -> str:
    """Name of a class or function as it is written: of `a.b.C` "C"."""
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def kinds_of_rows(tree: ast.AST) -> int:
    """Questions which kind of rows, encoder, row models or memory views something is."""
    asked = 0
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass"):
            names = [last_name(part) for part in ast.walk(node.args[1])]
        elif isinstance(node, ast.MatchClass):
            names = [last_name(node.cls)]
        else:
            continue
        asked += any(map(KINDS.fullmatch, names))
    return asked


def heads(tree: ast.AST) -> int:
    """Classes that predict from neighbors: by their name, or by what a method gives."""
    found = [node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)]
    return sum(
        one.name != "HeadOutput"
        and (
            one.name.endswith("NeighborHead")
            or any(
                last_name(getattr(method, "returns", None)) == "HeadOutput" for method in one.body
            )
        )
        for one in found
    )


def pipelines(tree: ast.AST) -> int:
    """Calls that make a predictor of fitted parts."""
    calls = [node for node in nodes_of(tree) if isinstance(node, ast.Call)]
    return sum(last_name(call.func) == "ClassPredictor" for call in calls)


def private_reaches(trees: Mapping[Path, ast.AST]) -> int:
    """Lines of classifier, service and commands that use a private name of the classifier."""
    path = SOURCE / "estimators" / "classifier.py"
    parts = [n for n in nodes_of(trees[path]) if last_name(getattr(n, "value", None)) == "self"]
    parts += [n for n in nodes_of(trees[path]) if isinstance(n, ast.FunctionDef)]
    names = {str(getattr(part, "attr", getattr(part, "name", ""))) for part in parts}
    own = {name for name in names if name.startswith("_") and not name.startswith("__")}
    found = set()
    for other, tree in trees.items():
        theirs = {"self", "cls"} | {n.name for n in nodes_of(tree) if isinstance(n, ast.ClassDef)}
        found |= {
            (other, node.lineno)
            for node in nodes_of(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in own
            and last_name(node.value) not in theirs
        }
    rooms = {"estimators", "serve", "cli"}
    return sum(file != path and bool(rooms & {*file.parts}) for file, _ in found)


def fields(trees: Iterable[ast.AST], *names: str) -> int:
    """Annotated fields of the classes with these names; one that is declared again counts once."""
    classes = [n for tree in trees for n in nodes_of(tree) if isinstance(n, ast.ClassDef)]
    lines = [line for node in classes if node.name in names for line in node.body]
    return len({last_name(line.target) for line in lines if isinstance(line, ast.AnnAssign)})


def held_out_once(text: str) -> int:
    """Mentions of rows held out once, also where a line ends in one."""
    return len(HELD_OUT_ONCE.findall(" ".join(text.split())))


def kinds_and_words() -> dict[str, float]:
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("**/*.md")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = Counter(name for tree in trees.values() for name in bound_names(tree))
    lines = [line.lower() for text in (*texts.values(), *pages) for line in text.splitlines()]
    classes = [
        node.name
        for tree in trees.values()
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef)
    ]
    inside = {
        room: [tree for path, tree in trees.items() if room in path.parent.parts]
        for room in ("estimators", "fit", "nn")
    }
    return {
        "isinstance on kinds of rows": sum(map(kinds_of_rows, trees.values())),
        "heads": sum(map(heads, inside["nn"])),
        "memory views": sum(name.endswith("Views") for name in classes),
        "pipelines": sum(map(pipelines, inside["fit"])),
        "reaches into privates of the classifier": private_reaches(trees),
        "settings of a fit": fields(trees.values(), "Settings")
        + fields(trees.values(), "HeadConfig"),
        "settings of a training": fields(
            trees.values(), "EngineConfig", "TrainConfig", "Augmentation"
        ),
        "rows held out once, in docs": sum(map(held_out_once, (*pages, readme))),
        "files that know label noise": sum(
            bool(NOISE.search(text)) for path, text in texts.items() if "estimators" in path.parts
        ),
        "training loops in the library": sum(
            bool(re.search(r"\.backward\(\)", text)) for text in texts.values()
        ),
        "variables called place, told or asked": sum(names[word] for word in VAGUE),
        "lines that say stranger": sum("stranger" in line for line in lines),
    }


def import_seconds(code: str) -> float:
    """Median seconds of processor time that a fresh process takes."""
    taken = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken)


def import_time() -> dict[str, float]:
    ours = import_seconds("import nearwise; nearwise.AttnKNNClassifier")
    theirs = import_seconds("import torch, sklearn.ensemble")
    return {"import of the classifier, times torch and scikit-learn": round(ours / theirs, 2)}


def circles() -> dict[str, float]:
    """Groups of modules that import each other, by the walk of the tests."""
    sys.path.insert(0, str(ROOT))
    from tests import test_imports

    return {"circles of imports": len(test_imports.circles(test_imports.graph_of(SOURCE)))}


def way_of_a_row(call: Any) -> tuple[int, int]:
    """Files of nearwise that a call enters, and calls from one of them to another."""
    files: set[str] = set()
    hops = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal hops
        here = frame.f_code.co_filename
        if event != "call" or not here.startswith(str(SOURCE)):
            return
        files.add(here)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(SOURCE)):
            caller = caller.f_back
        hops += caller is not None and caller.f_code.co_filename != here

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), hops


def ways() -> dict[str, float]:
    from sklearn.datasets import load_iris

    from nearwise import AttnKNNClassifier
    from nearwise.estimators.model.class_predictor import ClassPredictor
    from nearwise.estimators.model.memory_views import MemoryViews

    X, y = load_iris(return_X_y=True)
    row = X[:1] + 0.01

    def fit() -> AttnKNNClassifier:
        return AttnKNNClassifier(cv=3, random_state=0, n_jobs=1).fit(X, y)

    model = fit()
    everything = ("proba", "sets", "novelty_p_value", "explanations")

    def ask() -> None:
        query = model.query(row, explain=5)
        for name in everything:
            getattr(query, name)()
        query.selection(coverage=0.9)

    folder = tempfile.TemporaryDirectory()
    saved = Path(folder.name) / "model"
    model.save(saved)
    calls: dict[str, Callable[[], object]] = {
        "fit": fit,
        "predict_proba, one row": lambda: model.predict_proba(row),
        "save": lambda: model.save(Path(tempfile.mkdtemp(dir=folder.name)) / "model"),
        "load": lambda: AttnKNNClassifier.load(saved),
    }
    found: dict[str, float] = {}
    for name, call in calls.items():
        call()  # what is imported, compiled and kept for all calls is there from now on
        found[f"{name}: files"], found[f"{name}: hops between files"] = way_of_a_row(call)
    ask()
    passes = patch.object(
        ClassPredictor, "retrieve", autospec=True, side_effect=ClassPredictor.retrieve
    )
    searches = patch.object(MemoryViews, "search", autospec=True, side_effect=MemoryViews.search)
    with passes as passed, searches as searched:
        model.predict_proba(row)
        plain = searched.call_count
        passed.reset_mock()
        ask()
    ours = [one for one in AttnKNNClassifier.__mro__ if one.__module__.startswith("nearwise")]
    public = [name for name in dir(AttnKNNClassifier) if not name.startswith("_")]
    return found | {
        "passes over the rows with all flags": passed.call_count,
        "searches beyond those of a prediction, with all flags": searched.call_count - 2 * plain,
        "our classes in the MRO of the classifier": len(ours),
        "constructor parameters": len(inspect.signature(AttnKNNClassifier).parameters),
        "public names of the classifier": len(public),
    }


def measure() -> dict[str, float]:
    """Measure what may not rise, in the order of `TARGETS`."""
    found = sizes() | ways() | kinds_and_words()
    return {name: found[name] for name in TARGETS}


def recorded() -> dict[str, float]:
    """Read what each measure may be at most without a line in the changelog."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    return {row["measure"]: row["recorded"] for row in rows if row["measure"] in TARGETS}


def rises(now: Mapping[str, float], record: Mapping[str, float], changelog: str) -> list[str]:
    """Say which measures stand above their record and have no line in the changelog.

    A line counts where it starts from the record and ends at the new value or above.
    """
    unreleased = changelog.partition("\n## [Unreleased]")[2].partition("\n## ")[0]
    section = unreleased.partition("\n### House\n")[2].partition("\n### ")[0]
    excuses = [found for line in section.splitlines() if (found := EXCUSE.match(line))]
    out = []
    for name, value in now.items():
        before = record.get(name, value)
        covered = any(
            excuse["measure"] == name
            and _number(excuse["before"]) == before
            and _number(excuse["after"]) >= value
            for excuse in excuses
        )
        if value > before and not covered:
            out.append(
                f"{name} rose by {value - before:,g}, from {before:,g} to {value:,g}. Bring it "
                "down; or, if that buys something, say what under `### House` of [Unreleased] in "
                f"CHANGELOG.md: `- {name} {before:,g} -> {value:,g}: reason`, then run "
                "`python benchmarks/house.py --record`."
            )
    return out


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write what is measured")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    now, record = measure(), recorded()
    rows: list[dict[str, Any]] = []
    for name, value in (now | circles() | import_time()).items():
        target = (TARGETS | SHOWN)[name]
        rows.append({"measure": name, "recorded": value, "target": target})
        missed = "" if target is None or value <= target else "  missed"
        shown = ["" if one is None else format(one, "g") for one in (record.get(name), target)]
        print(f"{name:55} {value:8g} {shown[0]:>8} {shown[1]:>8}{missed}")
    if found := rises(now, record, CHANGELOG.read_text(encoding="utf-8")):
        print("", *found, sep="\n")
        return 1
    if options.record:
        kept = {"command": "benchmarks/house.py --record", "rows": rows}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
