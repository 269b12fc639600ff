"""Judge the pretrained head on families of tables that it has never met, beside simple peers.

Claims: without a base, a lower NLL than distance weights that are tuned by leave-one-out in the
same map, on most tables; with one forest as base, the lowest mean rank among the simple peers; on
tables of under 50 rows no worse than the class shares or a ridge logistic regression by more than
.05.

    python benchmarks/judge_head.py --data-root DATA
    python benchmarks/judge_head.py --part dev --weights runs/pretrain/long.safetensors

Writes benchmarks/results/pretrained_head.json (`--out` elsewhere).
"""

import json
import os
import time
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from keeping import RESULTS, conditions, keep, options_of, read
from pretrain_tasks import BaseOf, Table, family_split, read_table
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from nearwise.estimators.fit.feature_space import choose_feature_space
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.row_models import supervised_keys
from nearwise.functional import Neighbors, topk_neighbors
from nearwise.nn import PretrainedNeighborHead, RememberedSpace

K, MOST_ROWS, MOST_QUERIES = 32, 1600, 500
SIZES = (16, 32, 48)


def nll(log_proba: Tensor, labels: Tensor) -> float:
    """Mean NLL in nats."""
    return float(-log_proba.double().gather(1, labels[:, None]).mean())


def votes(
    found: Neighbors, labels: Tensor, prior: Tensor, k: int, sharp: float, share: float
) -> Tensor:
    """Log-probabilities of distance-weighted votes of the nearest k, and the class shares."""
    distances, voters = found.distances[:, :k], labels[found.indices[:, :k]]
    unit = found.distances.mean(1, keepdim=True).clamp_min(1e-12)
    weight = torch.softmax(-sharp * distances / unit, dim=1)
    vote = torch.zeros(len(weight), len(prior)).scatter_add_(1, voters, weight)
    return torch.log((1 - share) * vote + share * prior)


def tuned(
    own: Neighbors, found: Neighbors, labels: Tensor, prior: Tensor, sharps: tuple[float, ...]
) -> Tensor:
    """Votes with the sharpness, k and share of the lowest leave-one-out NLL."""
    ks = sorted({min(k, own.indices.shape[1]) for k in (1, 2, 4, 8, 16, 32)})
    grid = product(ks, sharps, (0.01, 0.02, 0.05, 0.1, 0.2, 0.4))
    best = min(grid, key=lambda one: nll(votes(own, labels, prior, *one), labels))
    return votes(found, labels, prior, *best)


def tempered(left_out: Tensor, new: Tensor, labels: Tensor) -> Tensor:
    """Divide by the temperature of the lowest NLL on rows left out, pulled towards 1."""

    def loss(log_t: float) -> float:
        scores = torch.log_softmax(left_out / float(np.exp(log_t)), dim=1)
        return nll(scores, labels) + 2.0 * log_t**2 / len(labels)

    log_t = minimize_scalar(loss, bounds=(-1.5, 2.5), method="bounded").x
    return torch.log_softmax(new / float(np.exp(log_t)), dim=1)


def judge_split(
    head: PretrainedNeighborHead, table: Table, train: np.ndarray, test: np.ndarray, seed: int
) -> dict[str, float]:
    """NLL of every method on one split."""
    known, y = np.unique(table.labels[train], return_inverse=True)
    test = test[np.isin(table.labels[test], known)][:MOST_QUERIES]
    truth = torch.from_numpy(np.searchsorted(known, table.labels[test]))
    labels, n_classes = torch.from_numpy(y), len(known)
    memory = table.frame.iloc[train]
    memory = memory.loc[:, memory.notna().any()]
    encoder = TableEncoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = encoder.fit(memory)
        new = encoder.transform(table.frame.iloc[test][memory.columns])
    k = min(K, len(train) - 1)
    space, _ = choose_feature_space(encoder, rows, y, k, metric="euclidean", seed=seed)
    keys, query = space(encoder, rows), space(encoder, new)
    ids = torch.arange(len(keys))
    own = topk_neighbors(keys, keys, k, query_ids=ids, key_ids=ids)
    found = topk_neighbors(query, keys, min(K, len(keys)))
    counts = torch.bincount(labels, minlength=n_classes) + 0.5
    prior = counts / counts.sum()
    out = {"class shares": prior.log().expand(len(truth), -1)}
    out["uniform"] = tuned(own, found, labels, prior, (0.0,))
    out["distance"] = tuned(own, found, labels, prior, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
    sizes: dict[str, Any] = {"n_classes": n_classes, "n_columns": encoder.n_columns}
    remembered = RememberedSpace.of(keys, labels, **sizes)
    out["head"] = head.predict([remembered.describe(found)]).log_proba
    left_out = head.predict([remembered.describe(own, left_out=ids)]).log_proba
    out["head + T"] = tempered(left_out, out["head"], labels)
    dense = encoder.dense(rows), encoder.dense(new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linear = LogisticRegression(max_iter=1000).fit(dense[0], y)
    out["logistic"] = torch.from_numpy(linear.predict_proba(dense[1])).clamp_min(1e-12).log()
    view, new_view = encoder.ordinal_filled(rows), encoder.ordinal_filled(new)
    options: dict[str, Any] = {"bootstrap": True, "oob_score": True, "random_state": seed}
    for name, kind in (("forest", RandomForestClassifier), ("trees", ExtraTreesClassifier)):
        model = BaseOf([kind(200, **options)], n_classes)
        unseen = torch.from_numpy(model.fit([view], y, seed)).float()
        base = torch.from_numpy(model.predict([new_view])).float()
        out[f"{name} + T"] = tempered(unseen, base, labels)
    with_base = RememberedSpace.of(keys, labels, base_log_proba=unseen, **sizes)
    supervised = supervised_keys(keys, unseen)
    second = RememberedSpace.of(supervised, labels, base_log_proba=unseen, supervised=True, **sizes)
    found_2 = topk_neighbors(supervised_keys(query, base), supervised, min(K, len(keys)))
    first = with_base.describe(found, base)
    out["head, trees, one space"] = head.predict([first], base).log_proba
    both = [first, second.describe(found_2, base)]
    out["head, trees"] = head.predict(both, base).log_proba
    return {name: nll(log_proba, truth) for name, log_proba in out.items()}


def splits(
    table: Table, n_rows: int | None, seed: int, repeats: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Stratified folds; or the first `n_rows` of shuffles, where that leaves 40 rows."""
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(table.labels))
    if n_rows is None:
        some = some[: MOST_ROWS * 4 // 3]
        folds = StratifiedKFold(4, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cut = list(folds.split(some, table.labels[some]))
        return [(some[train], some[test]) for train, test in cut[:repeats]]
    if len(some) < n_rows + 40:
        return []
    orders = [rng.permutation(len(table.labels)) for _ in range(repeats)]
    return [(o[:n_rows], o[n_rows : n_rows + MOST_QUERIES]) for o in orders]


def compared(by_table: dict[str, dict[str, float]], ours: str, peer: str) -> dict[str, float]:
    """Mean difference over tables, its 95 % interval, the share of tables that it is below 0 on."""
    differences = np.array([one[ours] - one[peer] for one in by_table.values()])
    half = 1.96 * differences.std(ddof=1) / len(differences) ** 0.5
    mean = differences.mean()
    return {
        "mean": float(mean),
        "low": float(mean - half),
        "high": float(mean + half),
        "share_better": float((differences < 0).mean()),
        "tables": len(differences),
    }


def summary(by_table: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Mean NLL, mean rank and differences over tables."""
    methods = list(next(iter(by_table.values())))
    table = np.array([[one[name] for name in methods] for one in by_table.values()])
    ranked = [name for name in methods if name not in ("head", "head, trees, one space")]
    ranks = pd.DataFrame(table, columns=methods)[ranked].rank(axis=1).mean()
    pairs = [("head", "uniform"), ("head", "distance"), ("head + T", "distance")]
    pairs += [("head, trees", name) for name in ("forest + T", "trees + T", "logistic", "head")]
    return {
        "mean_nll": dict(zip(methods, table.mean(0).round(4).tolist(), strict=True)),
        "median_nll": dict(zip(methods, np.median(table, axis=0).round(4).tolist(), strict=True)),
        "mean_rank": {name: round(float(ranks[name]), 2) for name in ranked},
        "differences": {f"{a} - {b}": compared(by_table, a, b) for a, b in pairs},
    }


def sklearn_tables() -> list[Table]:
    """The sets of scikit-learn, which nothing was trained on either."""
    loaders = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer}
    loaded = {name: load() for name, load in (loaders | {"digits": load_digits}).items()}
    return [
        Table(pd.DataFrame(one.data).rename(columns=str), one.target, f"sklearn-{name}")
        for name, one in loaded.items()
    ]


def timings(head: PretrainedNeighborHead) -> dict[str, float]:
    """CPU time of one thread: two spaces of 32 neighbors, 2,000 remembered rows, 3 classes."""
    generator = torch.Generator().manual_seed(0)
    keys, query = torch.randn(2, 2000, 10, generator=generator)
    labels = torch.randint(3, (2000,), generator=generator)
    old, new = torch.log_softmax(torch.randn(2, 2000, 3, generator=generator), dim=2)
    spaces = [
        RememberedSpace.of(
            keys, labels, n_classes=3, n_columns=10, base_log_proba=old, supervised=supervised
        )
        for supervised in (False, True)
    ]
    found = topk_neighbors(query, keys, 32)
    one = Neighbors(found.distances[:1], found.indices[:1])
    given = {"batch_us_per_row": (found, new, 1e6 / 2000), "one_row_ms": (one, new[:1], 1e3)}
    measured = {}
    for name, (near, base, factor) in given.items():
        for part in ("describe", "predict"):
            seconds = []
            for _ in range(30):
                start = time.thread_time()
                described = [space.describe(near, base) for space in spaces]
                between = time.thread_time()
                head.predict(described, base)
                end = time.thread_time()
                seconds.append(between - start if part == "describe" else end - between)
            measured[f"{part}_{name}"] = round(factor * min(seconds), 3)
    return measured


def main() -> None:
    parser = options_of(
        __doc__, data_root=Path(os.environ.get("NEARWISE_DATA", "data")), part="judge",
        no_sizes=False, repeats=2, seed=0, out=RESULTS / "pretrained_head.json",
        only_timings=False,
    )  # fmt: skip
    parser.add_argument("--weights", type=Path, help="default: those of the package")
    args = parser.parse_args()
    torch.set_num_threads(1)
    head = PretrainedNeighborHead.load(args.weights)
    if args.only_timings:
        record = read(args.out) | {"timings": timings(head)}
        keep(record, args.out)
        print(record["timings"])
        return
    folder = args.data_root / "tables"
    tables = [read_table(folder, name) for name in family_split(folder)[args.part]]
    if args.part == "judge":
        tables += sklearn_tables()
    results: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for table in tables:
        start = time.perf_counter()
        for size in (None, *(() if args.no_sizes else SIZES)):
            rows = [
                judge_split(head, table, *split, args.seed + at)
                for at, split in enumerate(splits(table, size, args.seed, args.repeats))
            ]
            if rows:
                mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
                results["folds" if size is None else f"{size} rows"][table.source] = mean
        shown = {name: round(value, 3) for name, value in results["folds"][table.source].items()}
        took = time.perf_counter() - start
        print(f"{table.source} ({took:.0f} s)", json.dumps(shown), flush=True)
    found = {setting: summary(by_table) for setting, by_table in results.items()}
    record = conditions() | {"part": args.part, "seed": args.seed, "repeats": args.repeats}
    record |= {"timings": timings(head), "summary": found, "tables": results}
    keep(record, args.out)
    print(json.dumps(found["folds"], indent=1))


if __name__ == "__main__":
    main()
