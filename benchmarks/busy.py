"""Fits, predictions, images and layers on a machine that does other work too.

Claim: beside two processes that never rest, work takes at most 2 times the processor time and 3
times the time that it takes on a quiet machine of two cores, whether torch is imported before
nearwise or after. Each piece of work runs in a process of its own, with its own choice of threads,
quiet and busy in turn. Plain torch's dense attention stands beside the k-NN layer.

    python benchmarks/busy.py --out benchmarks/results/busy.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_CPU, MOST_WALL = 2.0, 3.0
ORDERS = ("nearwise first", "torch first")


def digits_fit(**settings: Any) -> Callable[[], Any]:
    """A fit of 1,437 digits, 30 % of whose labels are wrong."""
    import numpy as np
    from sklearn.datasets import load_digits

    from nearwise import AttnKNNClassifier

    X, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    rows = generator.permutation(len(y))[:1437]
    X, y = X[rows], y[rows]
    wrong = generator.random(len(y)) < 0.3
    y[wrong] = (y[wrong] + generator.integers(1, 10, int(wrong.sum()))) % 10
    return lambda: AttnKNNClassifier(random_state=0, **settings).fit(X, y)


def digits_predictions(n_rows: int, times: int) -> Callable[[], Any]:
    """Predictions of `n_rows` digits, `times` times."""
    from sklearn.datasets import load_digits

    X = load_digits().data
    model = digits_fit(preset="instant")()
    return lambda: [model.predict_proba(X[:n_rows]) for _ in range(times)]


def image_fit() -> Callable[[], Any]:
    """A fit of 1,000 small images, two epochs of the default network."""
    import numpy as np
    from sklearn.datasets import load_digits

    from nearwise import AttnKNNClassifier

    digits = load_digits()
    X = (digits.images[:1000, ..., None] * 15.9).astype(np.uint8)
    settings = {"train": {"epochs": 2}}
    return lambda: AttnKNNClassifier(random_state=0, settings=settings).fit(X, digits.target[:1000])


def layer(*, dense: bool) -> Callable[[], Any]:
    """Forward and backward of a layer over 8 x 197 tokens, 30 times."""
    import torch

    from nearwise import KNNAttention

    torch.manual_seed(0)
    attention = KNNAttention(192, num_heads=3, n_neighbors=197 if dense else 9)
    tokens = torch.randn(8, 197, 192, requires_grad=True)

    def work() -> None:
        for _ in range(30):
            projected = attention.qkv(tokens).view(8, 197, 3, 3, 64).permute(2, 0, 3, 1, 4)
            mixed = torch.nn.functional.scaled_dot_product_attention(*projected)
            attention.proj(mixed.transpose(1, 2).flatten(2)).sum().backward()

    def ours() -> None:
        for _ in range(30):
            attention(tokens).sum().backward()

    return work if dense else ours


WORK: dict[str, Callable[[], Callable[[], Any]]] = {
    "fit of 1,437 digits, default": lambda: digits_fit(),
    'fit of 1,437 digits, label_noise="auto"': lambda: digits_fit(label_noise="auto"),
    "fit of 1,437 digits, instant": lambda: digits_fit(preset="instant"),
    "100 predictions of 32 digits": lambda: digits_predictions(32, 100),
    "10 predictions of 1,000 digits": lambda: digits_predictions(1000, 10),
    "fit of 1,000 images of digits": image_fit,
    "k-NN attention layer": lambda: layer(dense=False),
    "dense attention layer": lambda: layer(dense=True),
}


def measure(name: str, order: str) -> dict[str, float]:
    """Do a piece of work in this process; its seconds of processor and of time."""
    if order == "torch first":
        import torch  # noqa: F401
    work = WORK[name]()
    if "fit" not in name:
        work()  # compiled loops
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - start}


@contextmanager
def beside(n_loops: int) -> Iterator[None]:
    """Keep processors busy with loops."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_loops)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def in_a_process(name: str, order: str, n_loops: int) -> dict[str, float]:
    """Measure in a new process, beside so many loops."""
    command = [sys.executable, __file__, "--one", name, "--order", order]
    with beside(n_loops):
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def compare(name: str, order: str, repeats: int, n_loops: int) -> dict[str, Any]:
    """Quiet and busy in turn; ratios of the medians, with all the seconds."""
    runs: dict[str, list[dict[str, float]]] = {"quiet": [], "busy": []}
    for _ in range(repeats):
        runs["quiet"].append(in_a_process(name, order, 0))
        runs["busy"].append(in_a_process(name, order, n_loops))
    result: dict[str, Any] = {"work": name, "order": order}
    for unit, most in (("cpu", MOST_CPU), ("wall", MOST_WALL)):
        seconds = {kind: [round(run[unit], 3) for run in found] for kind, found in runs.items()}
        quiet, busy = (statistics.median(seconds[kind]) for kind in ("quiet", "busy"))
        result[f"{unit}_seconds"] = seconds
        result[f"{unit}_ratio"] = round(busy / quiet, 2)
        result[f"{unit}_holds"] = busy / quiet <= most
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loops", type=int, default=2, help="busy processes beside the work")
    parser.add_argument("--only", default="", help="part of the names of the work to measure")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/busy.json"))
    parser.add_argument("--one", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--order", choices=ORDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.order)))
        return
    from search_speed import circumstances

    from nearwise.conditions import command_line

    record = {
        "command": f"python benchmarks/{command_line()}",
        "seed": 0,
        "loops": arguments.loops,
        "bars": {"cpu_ratio": MOST_CPU, "wall_ratio": MOST_WALL},
        **circumstances(),
        "results": [],
    }
    for name in (name for name in WORK if arguments.only in name):
        for order in ORDERS:
            result = compare(name, order, arguments.repeats, arguments.loops)
            record["results"].append(result)
            print(json.dumps(result), flush=True)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    os.environ.pop("OMP_NUM_THREADS", None)  # its own choice is measured
    main()
