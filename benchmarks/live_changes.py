"""What a durable change costs: a row added, removed or relabelled, committed before it returns.

    python benchmarks/live_changes.py
    python benchmarks/live_changes.py --rows 1000,45000 --repeats 100

Features of CIFAR-10 (`--data-root`, or NEARWISE_DATA), preset "instant" without a base, which fits
again for every relabelled row (three are). Beside the change: the journal's part of it, saving the
whole model instead, opening the model, and how much longer that takes per added row. Writes
benchmarks/results/live_changes.json and RESULTS.md.
"""

import json
import statistics
import sys
import tempfile
from functools import partial
from typing import Any

from keeping import HERE, RESULTS, conditions, keep, listed, milliseconds, options_of
from nearwise_lab.data import load_dataset
from results_page import write_page

from nearwise import AttnKNNClassifier, LiveModel
from nearwise.memory import Journal


def measured(n_rows: int, repeats: int, data_root: str | None) -> dict[str, Any]:
    """Medians and 95th percentiles of one-row changes to a memory of `n_rows`."""
    data = load_dataset("cifar10-features", data_root=data_root)
    X, y = data.X[: n_rows + repeats], data.y[: n_rows + repeats]
    in_journal: list[float] = []
    append = Journal.append

    def timed(*arguments: Any) -> None:
        in_journal.append(milliseconds(lambda: append(*arguments)))

    with tempfile.TemporaryDirectory() as folder:
        model = AttnKNNClassifier(estimator=None, preset="instant", random_state=101)
        model.fit(X[:n_rows], y[:n_rows])
        save = milliseconds(lambda: model.save(folder))
        opened = milliseconds(lambda: AttnKNNClassifier.load(folder))
        Journal.append = timed  # type: ignore[assignment, method-assign]
        with LiveModel(folder) as live:
            new = range(n_rows, n_rows + repeats)
            added = [milliseconds(partial(live.add, X[i : i + 1], y[i : i + 1])) for i in new]
            opened_again = milliseconds(lambda: AttnKNNClassifier.load(folder))
            relabelled = [milliseconds(partial(live.relabel, [i], y[:1])) for i in new[:3]]
        Journal.append = append  # type: ignore[method-assign]
    return {
        "rows": n_rows,
        "add_ms": statistics.median(added),
        "add_ms_p95": statistics.quantiles(added, n=20)[-1],
        "relabel_ms": statistics.median(relabelled),
        "journal_ms": statistics.median(in_journal),
        "save_ms": save,
        "open_ms": opened,
        "replay_ms_per_add": (opened_again - opened) / repeats,
    }


def main(arguments: list[str]) -> None:
    """Measure at every size and write results."""
    parser = options_of(__doc__, rows="1000,10000,45000", repeats=50, data_root=None)
    options = parser.parse_args(arguments)
    results = []
    for n_rows in listed(options.rows, int):
        results.append(measured(n_rows, options.repeats, options.data_root))
        print(json.dumps(results[-1]), flush=True)
    keep(conditions() | {"results": results}, RESULTS / "live_changes.json")
    print(write_page(RESULTS, HERE / "RESULTS.md"))


if __name__ == "__main__":
    main(sys.argv[1:])
