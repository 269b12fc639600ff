"""How fast a stored forest answers, what it takes on disk, and what a forged copy of it does.

Compares the plain arrays that nearwise keeps with scikit-learn's own model and, where they are
installed (`pip install treelite onnx onnxruntime`), with treelite and ONNX Runtime. Copies of every
format are forged by writing eight random bytes somewhere (arrays and treelite) or a wrong child,
column, class or leaf into the nodes (ONNX); each is opened and queried in a process of its own.
"refused": an error; "answered": finite probabilities; "died": a signal; "hung": five seconds
without an answer.

    python benchmarks/stored_trees.py --out benchmarks/results/stored_trees.json
"""

import argparse
import io
import json
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import skops.io
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

from nearwise.classifier.fit.as_arrays import as_arrays
from nearwise.classifier.model.array_models import from_arrays
from nearwise.conditions import command_line, hardware, versions

SECONDS = 5
ANSWERED, REFUSED, ODD = 0, 1, 2


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Median time of a call after one that warms up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(times), 4)


def outcome(try_it: Callable[[], np.ndarray]) -> str:
    """Open and ask a forged copy in a child process."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(SECONDS)
        try:
            os._exit(ANSWERED if np.isfinite(try_it()).all() else ODD)
        except Exception:
            os._exit(REFUSED)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "hung" if os.WTERMSIG(status) == signal.SIGALRM else "died"
    return {ANSWERED: "answered", REFUSED: "refused", ODD: "not finite"}[os.WEXITSTATUS(status)]


def forge_bytes(
    content: bytes, read: Callable[[bytes], np.ndarray], n: int, seed: int
) -> dict[str, int]:
    """Count what happens after eight random bytes at a random place, `n` times."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for _ in range(n):
        copy = bytearray(content)
        at = int(rng.integers(0, len(copy) - 8))
        copy[at : at + 8] = rng.bytes(8)
        found[outcome(lambda copy=copy: read(bytes(copy)))] += 1  # type: ignore[misc]
    return dict(found)


def arrays_row(model: Any, X: np.ndarray, small: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The arrays that nearwise stores."""
    content = safetensors.numpy.save(as_arrays(model).to_arrays())
    arrays = from_arrays("forest", safetensors.numpy.load(content))

    def read(copy: bytes) -> np.ndarray:
        return np.asarray(from_arrays("forest", safetensors.numpy.load(copy)).predict_proba(X[:20]))

    forged = forge_bytes(
        safetensors.numpy.save(as_arrays(small).to_arrays()), read, args.forged, args.seed
    )
    return {
        "one row, ms": milliseconds(lambda: arrays.predict_proba(X[:1]), args.repeats),
        "397 rows, ms": milliseconds(lambda: arrays.predict_proba(X[:397]), args.repeats),
        "MB": round(len(content) / 1e6, 2),
        "largest difference": float(np.abs(arrays.predict_proba(X) - model.predict_proba(X)).max()),
        "forged": forged,
    }


def sklearn_row(model: Any, X: np.ndarray, args: argparse.Namespace) -> dict[str, Any]:
    """scikit-learn's own model, stored with skops."""
    return {
        "one row, ms": milliseconds(lambda: model.predict_proba(X[:1]), args.repeats),
        "397 rows, ms": milliseconds(lambda: model.predict_proba(X[:397]), args.repeats),
        "MB": round(len(skops.io.dumps(model)) / 1e6, 2),
    }


def treelite_row(model: Any, X: np.ndarray, small: Any, args: argparse.Namespace) -> dict[str, Any]:
    """treelite's reference runtime, stored in its own format."""
    import treelite  # type: ignore[import-not-found]

    def ask(content: bytes, rows: np.ndarray) -> np.ndarray:
        stored = treelite.Model.deserialize_bytes(content)
        return np.asarray(treelite.gtil.predict(stored, rows, nthread=1)).squeeze(1)

    content = bytes(treelite.sklearn.import_model(model).serialize_bytes())
    stored = treelite.Model.deserialize_bytes(content)

    def call(n: int) -> Callable[[], Any]:
        return lambda: treelite.gtil.predict(stored, X[:n], nthread=1)

    few = bytes(treelite.sklearn.import_model(small).serialize_bytes())
    return {
        "version": treelite.__version__,
        "one row, ms": milliseconds(call(1), args.repeats),
        "397 rows, ms": milliseconds(call(397), args.repeats),
        "MB": round(len(content) / 1e6, 2),
        "largest difference": float(np.abs(ask(content, X) - model.predict_proba(X)).max()),
        "forged": forge_bytes(few, lambda copy: ask(copy, X[:20]), args.forged, args.seed),
    }


def onnx_nodes(model: Any) -> dict[str, list[Any]]:
    """Attributes of ONNX's TreeEnsembleClassifier for a forest."""
    found: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids",
                     "falsenodeids")
    } | {f"class_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}  # fmt: skip
    for number, estimator in enumerate(model.estimators_):
        tree = estimator.tree_
        leaf = tree.children_left < 0
        found["nodes_treeids"] += [number] * tree.node_count
        found["nodes_nodeids"] += range(tree.node_count)
        found["nodes_featureids"] += np.where(leaf, 0, tree.feature).tolist()
        found["nodes_modes"] += ["LEAF" if end else "BRANCH_LEQ" for end in leaf]
        found["nodes_values"] += np.where(leaf, 0, tree.threshold).tolist()
        found["nodes_truenodeids"] += np.where(leaf, 0, tree.children_left).tolist()
        found["nodes_falsenodeids"] += np.where(leaf, 0, tree.children_right).tolist()
        for node, label in zip(*np.nonzero(tree.value[:, 0] * leaf[:, None]), strict=True):
            found["class_treeids"].append(number)
            found["class_nodeids"].append(int(node))
            found["class_ids"].append(int(label))
            found["class_weights"].append(tree.value[node, 0, label] / len(model.estimators_))
    return found


def onnx_bytes(nodes: dict[str, Any], n_columns: int, n_classes: int) -> bytes:
    """An ONNX model of these nodes."""
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node(
        "TreeEnsembleClassifier", ["X"], ["label", "proba"], domain="ai.onnx.ml",
        classlabels_int64s=[*range(n_classes)], post_transform="NONE", **nodes,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "forest",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, n_columns])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("proba", TensorProto.FLOAT, [None, n_classes]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def onnx_row(model: Any, X: np.ndarray, small: Any, args: argparse.Namespace) -> dict[str, Any]:
    """ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    rows = X.astype(np.float32)

    def opened(content: bytes) -> Any:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    n_classes = len(model.classes_)
    content = onnx_bytes(onnx_nodes(model), X.shape[1], n_classes)
    session = opened(content)
    found: Counter[str] = Counter()
    rng = np.random.default_rng(args.seed)
    integers = [name for name, values in onnx_nodes(small).items() if isinstance(values[0], int)]
    for _ in range(args.forged):
        nodes = onnx_nodes(small)
        name = integers[rng.integers(len(integers))]
        nodes[name][rng.integers(len(nodes[name]))] = int(rng.integers(-(2**40), 2**40))
        forged = onnx_bytes(nodes, X.shape[1], n_classes)
        found[outcome(lambda f=forged: opened(f).run(["proba"], {"X": rows[:20]})[0])] += 1  # type: ignore[misc]
    answer = session.run(["proba"], {"X": rows})[0]
    return {
        "version": onnxruntime.__version__,
        "one row, ms": milliseconds(lambda: session.run(["proba"], {"X": rows[:1]}), args.repeats),
        "397 rows, ms": milliseconds(
            lambda: session.run(["proba"], {"X": rows[:397]}), args.repeats
        ),
        "MB": round(len(content) / 1e6, 2),
        "largest difference": float(np.abs(answer - model.predict_proba(X)).max()),
        "forged": dict(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--forged", type=int, default=400, help="forged copies of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    forest = ExtraTreesClassifier(args.trees, n_jobs=1, random_state=args.seed)
    model = forest.fit(X[:1400], y[:1400])
    small = ExtraTreesClassifier(5, random_state=args.seed).fit(X[:300], y[:300])
    rows = {
        "arrays": lambda: arrays_row(model, X, small, args),
        "scikit-learn": lambda: sklearn_row(model, X, args),
        "treelite": lambda: treelite_row(model, X, small, args),
        "onnxruntime": lambda: onnx_row(model, X, small, args),
    }
    found: dict[str, Any] = {}
    for name, measure in rows.items():
        try:
            found[name] = measure()
        except ImportError as error:
            found[name] = {"not measured": str(error)}
        print(name, json.dumps(found[name]), flush=True)
    if args.out is not None:
        report = {
            "command": command_line(),
            "hardware": hardware(),
            "versions": versions(),
            "trees": args.trees,
            "rows": found,
        }
        stream = io.StringIO()
        json.dump(report, stream, indent=1)
        args.out.write_text(stream.getvalue() + "\n")


if __name__ == "__main__":
    main()
