"""Measure the code base: its size, the path of one row through it, and its words.

    python benchmarks/house.py

Prints a table of measurements beside their limits, and writes benchmarks/results/house.json. Sizes
and words are read from the source of the library (`nearwise` without `nearwise.lab`); paths are
counted by a profiler in a real prediction for one row of iris (preset "fast"); imports are timed in
fresh processes.
"""

import argparse
import ast
import inspect
import json
import re
import resource
import statistics
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nearwise"
VAGUE = ("place", "told", "asked")
NOISE = re.compile(r"label_noise|transition|\bnoise\b|doubt", re.IGNORECASE)
AT_MOST: dict[str, float] = {
    "library lines": 40_000,
    "library modules": 230,
    "hard dependencies": 9,
    "files flat in the largest room": 12,
    "predict_proba, one row: files": 14,
    "predict_proba, one row: hops between files": 80,
    "passes over the rows with all flags": 1,
    "searches beyond those of a prediction, with all flags": 0,
    "our classes in the MRO of the classifier": 1,
    "constructor parameters": 18,
    "files that know label noise": 8,
    "training loops in the library": 1,
    "circles of imports": 0,
    "import of the classifier, times torch and scikit-learn": 1.5,
    "variables called place, told or asked": 0,
    "lines that say stranger": 0,
}


def modules(lab: bool = False) -> list[Path]:
    """Source files of the library, or of the lab."""
    found = sorted(SOURCE.rglob("*.py"))
    return [path for path in found if ("lab" in path.relative_to(SOURCE).parts) == lab]


def sizes() -> dict[str, float]:
    rooms = Counter(path.parent for path in modules() if path.name != "__init__.py")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "library lines": sum(len(path.read_text().splitlines()) for path in modules()),
        "library modules": len(modules()),
        "lab lines": sum(len(path.read_text().splitlines()) for path in modules(lab=True)),
        "hard dependencies": len(project["dependencies"]),
        "files flat in the largest room": max(rooms.values()),
    }


def bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def words() -> dict[str, float]:
    texts = {path: path.read_text() for path in modules()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = Counter(name for tree in trees.values() for name in bound_names(tree))
    rooms = [path for path in texts if "classifier" in path.parts]
    shown = [*texts.values(), *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    lines = [line.lower() for text in shown for line in text.splitlines()]
    return {
        "files that know label noise": sum(bool(NOISE.search(texts[path])) for path in rooms),
        "training loops in the library": sum(
            bool(re.search(r"\.backward\(\)", text)) for text in texts.values()
        ),
        "variables called place, told or asked": sum(names[word] for word in VAGUE),
        "lines that say stranger": sum("stranger" in line for line in lines),
        "lines that say novelty or out-of-distribution": sum(
            "novelty" in line or "out-of-distribution" in line for line in lines
        ),
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


def count_circles() -> int:
    """Groups of modules that import each other, by the walk of the tests."""
    sys.path.insert(0, str(ROOT))
    from tests.test_imports import circles, library_graph

    return len(circles(library_graph()))


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
    from nearwise.classifier.model.memory_views import MemoryViews
    from nearwise.classifier.model.predictor import Predictor

    X, y = load_iris(return_X_y=True)
    model = AttnKNNClassifier(preset="fast", random_state=0).fit(X, y)
    row = X[:1] + 0.01
    flags: dict[str, Any] = {"sets": True, "novelty": True, "explain": 5}
    everything = ("proba", "sets", "novelty_p_value", "explanations")

    def ask() -> None:
        query = model.query(row, **flags)
        for name in everything:
            getattr(query, name)()
        query.selection(coverage=0.9)

    model.predict_proba(row)
    ask()  # what is kept for all queries is there from now on
    files, hops = way_of_a_row(lambda: model.predict_proba(row))
    passes = patch.object(Predictor, "retrieve", autospec=True, side_effect=Predictor.retrieve)
    searches = patch.object(MemoryViews, "search", autospec=True, side_effect=MemoryViews.search)
    with passes as passed, searches as searched:
        model.predict_proba(row)
        plain = searched.call_count
        passed.reset_mock()
        ask()
    ours = [one for one in AttnKNNClassifier.__mro__ if one.__module__.startswith("nearwise")]
    return {
        "predict_proba, one row: files": files,
        "predict_proba, one row: hops between files": hops,
        "passes over the rows with all flags": passed.call_count,
        "searches beyond those of a prediction, with all flags": searched.call_count - 2 * plain,
        "our classes in the MRO of the classifier": len(ours),
        "constructor parameters": len(inspect.signature(AttnKNNClassifier).parameters),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    measured = sizes() | ways() | words() | {"circles of imports": count_circles()} | import_time()
    rows = []
    for name, value in measured.items():
        most = AT_MOST.get(name)
        rows.append({"measure": name, "measured": value, "at_most": most})
        missed = "" if most is None or value <= most else "  over"
        print(f"{name:55} {value:8g} {'' if most is None else format(most, 'g'):>8}{missed}")
    options.results.mkdir(parents=True, exist_ok=True)
    kept = {"command": "benchmarks/house.py", "rows": rows}
    (options.results / "house.json").write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
