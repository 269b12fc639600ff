"""Tasks that the pretrained head learns from: families of tables, and synthetic tables.

A task is a memory, a base or none, and queries that neither has seen. Its rows go through the
library's own encoder, maps and forests, so that a head sees in training what it sees in use.
"""

import gzip
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from nearwise.estimators.fit.base import floored_log
from nearwise.estimators.fit.feature_space import FEATURE_MAPS, FeatureSpace, choose_feature_space
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.row_models import supervised_keys
from nearwise.functional import topk_neighbors
from nearwise.nn import NeighborSet, RememberedSpace

# Relatives of the sets that benchmarks/quality.py reports: they judge, and teach nothing.
RELATIVES = ("breast", "wpbc", "pendigits", "semeion", "mfeat")
SPLIT_SEED = 17
N_QUERIES = 160  # most per task


@dataclass
class Table:
    """Rows (n, columns) as a frame, labels int64 (n,), and where they come from."""

    frame: pd.DataFrame
    labels: np.ndarray
    source: str


@dataclass
class Task:
    """What the head is given of a task's queries, their labels, and the base's predictions."""

    spaces: list[NeighborSet]
    base_log_proba: torch.Tensor | None
    labels: torch.Tensor
    n_classes: int
    source: str


def family_split(folder: Path) -> dict[str, list[str]]:
    """Names of tables to train on, to develop on and to judge on; a family is on one side."""
    families = defaultdict(list)
    for name in pd.read_csv(folder / "INDEX.csv")["name"]:
        families[name.split("-")[0]].append(name)
    free = sorted(set(families) - set(RELATIVES))
    order = list(np.random.default_rng(SPLIT_SEED).permutation(free))
    n_judge = len(families) // 4 - len(RELATIVES)
    n_dev = len(families) // 8
    parts = {
        "judge": [*RELATIVES, *order[:n_judge]],
        "dev": order[n_judge : n_judge + n_dev],
        "train": order[n_judge + n_dev :],
    }
    return {
        part: [t for name in sorted(names) for t in families[name]] for part, names in parts.items()
    }


def read_table(folder: Path, name: str) -> Table:
    """Read one of the tables."""
    frame = pd.read_parquet(folder / f"{name}.parquet")
    labels = pd.factorize(frame.pop("Class"), sort=True)[0]
    keep = labels >= 0
    frame = frame.loc[keep, frame[keep].notna().any()].reset_index(drop=True)
    return Table(frame, labels[keep], name)


def read_mnist(folder: Path) -> Table:
    """First 50 principal components of 8,000 images."""
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)[:8000] / 255.0
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)[:8000].astype(np.int64)
    centred = pixels - pixels.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    keys = centred @ vectors[:, ::-1][:, :50]
    return Table(pd.DataFrame(keys).rename(columns=str), labels, "mnist-pca")


def _values(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    """Draw columns of mixed distributions, correlated or not."""
    kind = rng.integers(4)
    if kind == 0:
        values = rng.normal(size=(n, width))
    elif kind == 1:
        values = rng.uniform(-1.7, 1.7, size=(n, width))
    elif kind == 2:
        values = rng.normal(size=(n, width)) @ rng.normal(size=(width, width)) / width**0.5
    else:
        centers = rng.normal(size=(rng.integers(2, 12), width))
        spread = rng.uniform(0.1, 0.8)
        values = centers[rng.integers(len(centers), size=n)] + spread * rng.normal(size=(n, width))
    return values


def _tree_scores(rng: np.random.Generator, x: np.ndarray, n_out: int) -> np.ndarray:
    scores = np.zeros((len(x), n_out))
    for _ in range(rng.integers(1, 6)):
        leaf = np.zeros(len(x), dtype=np.int64)
        for _ in range(rng.integers(2, 7)):
            column = rng.integers(x.shape[1], size=2**12)[leaf % 2**12]
            cut = rng.normal(scale=0.7, size=2**12)[leaf % 2**12]
            leaf = 2 * leaf + (x[np.arange(len(x)), column] > cut)
        scores += rng.normal(size=(leaf.max() + 1, n_out))[leaf]
    return scores


def _network_scores(rng: np.random.Generator, x: np.ndarray, n_out: int) -> np.ndarray:
    for _ in range(rng.integers(1, 4)):
        width = rng.integers(4, 33)
        x = x @ rng.normal(size=(x.shape[1], width)) / x.shape[1] ** 0.5
        x = (np.tanh, np.abs, lambda v: np.maximum(v, 0), np.sin)[rng.integers(4)](
            rng.uniform(0.5, 3) * x + rng.normal(size=width)
        )
    return x @ rng.normal(size=(x.shape[1], n_out))


def _process_scores(rng: np.random.Generator, x: np.ndarray, n_out: int) -> np.ndarray:
    """Gaussian processes by random Fourier features, with a length scale per column."""
    scale = np.exp(rng.normal(scale=0.7, size=x.shape[1])) * rng.uniform(0.3, 2.0)
    waves = (x * scale / x.shape[1] ** 0.5) @ rng.normal(size=(x.shape[1], 200))
    return np.cos(waves + rng.uniform(0, 2 * np.pi, 200)) @ rng.normal(size=(200, n_out))


def _mixture(
    rng: np.random.Generator, n: int, width: int, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian clusters, some per class."""
    n_clusters = n_classes * rng.integers(1, 5)
    centers = rng.normal(size=(n_clusters, width)) * rng.uniform(0.5, 2.5)
    cluster = rng.integers(n_clusters, size=n)
    spread = np.exp(rng.normal(scale=0.5, size=(n_clusters, width)))
    return centers[cluster] + spread[cluster] * rng.normal(size=(n, width)), cluster % n_classes


def _labels(rng: np.random.Generator, x: np.ndarray, kind: str, n_classes: int) -> np.ndarray:
    """Draw a function of the columns, and labels by it, sure or not."""
    make = {"trees": _tree_scores, "process": _process_scores, "network": _network_scores}[kind]
    scores = make(rng, x, n_classes)
    scores = (scores - scores.mean(0)) / (scores.std(0) + 1e-9)
    scores += rng.normal(scale=rng.choice([0.0, 0.5, 1.0]), size=n_classes)
    scores += rng.gumbel(size=scores.shape) * rng.choice([0.0, 0.0, 0.1, 0.4])
    return scores.argmax(1)


def relabelled(rng: np.random.Generator, table: Table) -> Table:
    """Keep the rows of a table, and label them by a random function of some columns."""
    encoder = TableEncoder()
    dense = encoder.dense(encoder.fit(table.frame)).clip(-4, 4)
    some = rng.permutation(dense.shape[1])[: rng.integers(2, 13)]
    kind = ("trees", "process", "network")[rng.integers(3)]
    n_classes = int(2 if rng.random() < 0.5 else rng.integers(3, 9))
    labels = _labels(rng, dense[:, some].astype(float), kind, n_classes)
    return Table(table.frame, labels, f"{table.source}, relabelled")


def synthetic_table(rng: np.random.Generator, n: int) -> Table:
    """Draw a table of n rows from a random function of random columns."""
    width = int(np.exp(rng.uniform(np.log(2), np.log(30))))
    n_classes = int(2 if rng.random() < 0.45 else np.exp(rng.uniform(np.log(2.6), np.log(16))))
    kind = ("trees", "process", "mixture", "network")[rng.integers(4)]
    if kind == "mixture":
        x, labels = _mixture(rng, n, width, n_classes)
    else:
        x = _values(rng, n, width)
        labels = _labels(rng, x, kind, n_classes)
    if rng.random() < 0.5:
        x = np.concatenate([x, _values(rng, n, int(rng.integers(1, 2 * width + 1)))], axis=1)
    return Table(_damaged(rng, x), labels, f"synthetic-{kind}")


def _damaged(rng: np.random.Generator, x: np.ndarray) -> pd.DataFrame:
    """Round, skew, scale, blank out and categorise columns."""
    x = x[:, rng.permutation(x.shape[1])]
    for column in range(x.shape[1]):
        draw = rng.random()
        if draw < 0.1:
            x[:, column] = np.round(x[:, column] * rng.uniform(0.5, 3))
        elif draw < 0.2:
            x[:, column] = np.exp(rng.uniform(0.5, 2) * x[:, column].clip(-6, 6))
    x = x * np.exp(rng.normal(scale=rng.choice([0.0, 1.0, 3.0]), size=x.shape[1]))
    if rng.random() < 0.15:  # the scale drifts
        x = x * np.exp(rng.normal(scale=0.5, size=x.shape[1]) * np.linspace(0, 1, len(x))[:, None])
    with_gaps = rng.random(x.shape[1]) < (0.4 if rng.random() < 0.2 else 0.0)
    x = np.where(with_gaps & (rng.random(x.shape) < rng.uniform(0, 0.3)), np.nan, x)
    frame = pd.DataFrame(x).rename(columns=lambda c: f"x{c}")
    share = rng.choice([0.0, 0.0, 0.3, 1.0])
    for name in frame.columns:
        if rng.random() < share and frame[name].nunique() > 1:
            codes = pd.qcut(frame[name], int(rng.integers(2, 9)), labels=False, duplicates="drop")
            frame[name] = codes.map(lambda c: None if pd.isna(c) else f"c{int(c)}").astype(object)
    return frame


def varied(rng: np.random.Generator, table: Table, n_most: int) -> Table:
    """Take some rows and columns, merge classes, spoil labels, copy rows."""
    rows = rng.permutation(len(table.labels))[:n_most]
    if table.source.startswith("synthetic") and rng.random() < 0.3:
        rows = np.sort(rows)  # what drifts has drifted further at the queries
    frame, labels = table.frame.iloc[rows].reset_index(drop=True), table.labels[rows].copy()
    if rng.random() < 0.65 and frame.shape[1] > 2:
        width = max(2, int(frame.shape[1] * rng.uniform(0.3, 1.0)))
        frame = frame.iloc[:, np.sort(rng.permutation(frame.shape[1])[:width])]
    n_classes = labels.max() + 1
    if n_classes > 2 and rng.random() < 0.4:
        labels = rng.integers(rng.integers(2, n_classes), size=n_classes)[labels]
    if rng.random() < 0.3:
        wrong = rng.random(len(labels)) < rng.uniform(0, 0.4)
        labels = np.where(wrong, rng.permutation(labels), labels)
    if rng.random() < 0.1:
        copies = rng.integers(len(labels), size=int(rng.uniform(0.05, 0.4) * len(labels)))
        back = rng.permutation(len(labels) + len(copies))[:n_most]
        order = np.concatenate([np.arange(len(labels)), copies])[back]
        frame, labels = frame.iloc[order].reset_index(drop=True), labels[order]
    if rng.random() < 0.15:  # one class becomes rare
        rare = labels == rng.choice(labels)
        keep = ~rare | (rng.random(len(labels)) < rng.uniform(0.05, 0.5))
        frame, labels = frame[keep].reset_index(drop=True), labels[keep]
    return Table(frame, labels, table.source)


class BaseOf:
    """A base: predictions of remembered rows by models that did not see them, and of queries."""

    def __init__(self, models: list[Any], n_classes: int) -> None:
        self.models, self.n_classes = models, n_classes

    def fit(self, views: list[np.ndarray], labels: np.ndarray, seed: int) -> np.ndarray:
        """Fit to one view per model; return log-probabilities (n, C) of the rows left out."""
        parts = []
        for model, view in zip(self.models, views, strict=True):
            parts.append(floored_log(self._unseen(model, view, labels, seed)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if not hasattr(model, "oob_decision_function_"):
                    model.fit(view, labels)
        return _normal(np.mean(parts, axis=0))

    def _unseen(self, model: Any, view: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
        prior = np.bincount(labels, minlength=self.n_classes) / len(labels)
        out = np.tile(prior, (len(labels), 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(model, "oob_score"):
                found = model.fit(view, labels).oob_decision_function_
                seen = np.isfinite(found).all(1) & (found.sum(1) > 0)
                out[np.ix_(seen, model.classes_)] = found[seen]
                return out
            for train, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(
                view, labels
            ):
                model.fit(view[train], labels[train])
                out[held] = 0.0
                out[np.ix_(held, model.classes_)] = model.predict_proba(view[held])
        model.__dict__.pop("oob_decision_function_", None)
        return out

    def predict(self, views: list[np.ndarray]) -> np.ndarray:
        """Log-probabilities (n, C) of new rows."""
        parts = []
        for model, view in zip(self.models, views, strict=True):
            proba = np.zeros((len(view), self.n_classes))
            proba[:, model.classes_] = model.predict_proba(view)
            parts.append(floored_log(proba))
        return _normal(np.mean(parts, axis=0))


def _normal(log_proba: np.ndarray) -> np.ndarray:
    return log_proba - np.logaddexp.reduce(log_proba, axis=1, keepdims=True)


def _random_models(rng: np.random.Generator) -> list[tuple[str, Any]]:
    """Draw a base: forests, a linear model, or both, of varying size and depth."""
    draw, seed = rng.random(), int(rng.integers(2**31))
    forest: dict[str, Any] = {
        "n_estimators": int(np.exp(rng.uniform(np.log(20), np.log(160)))),
        "min_samples_leaf": int(rng.choice([1, 1, 1, 2, 4])),
        "max_depth": None if rng.random() < 0.75 else int(rng.integers(2, 9)),
        "bootstrap": True,
        "oob_score": True,
        "random_state": seed,
    }
    linear = LogisticRegression(C=float(np.exp(rng.uniform(np.log(0.01), np.log(3)))), max_iter=200)
    if draw < 0.5:
        return [("ordinal_filled", ExtraTreesClassifier(**forest))]
    if draw < 0.75:
        return [("ordinal_filled", RandomForestClassifier(**forest))]
    if draw < 0.87:
        return [("dense", linear)]
    return [("dense", linear), ("ordinal_filled", ExtraTreesClassifier(**forest))]


def make_task(
    rng: np.random.Generator, table: Table, n_memory: int, *, k: int, has_base: bool
) -> Task | None:
    """Remember the first rows, look at the others; None where no two classes are remembered."""
    seed = int(rng.integers(2**31))
    memory, queries = table.frame.iloc[:n_memory], table.frame.iloc[n_memory:]
    memory = memory.loc[:, memory.notna().any()]
    known, labels = np.unique(table.labels[:n_memory], return_inverse=True)
    of_queries = np.searchsorted(known, table.labels[n_memory:]).clip(max=len(known) - 1)
    fit = known[of_queries] == table.labels[n_memory:]
    if len(known) < 2 or fit.sum() < 8 or not memory.shape[1]:
        return None
    some = np.flatnonzero(fit)[:N_QUERIES]
    queries, of_queries = queries.iloc[some][memory.columns], of_queries[some]
    encoder = TableEncoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows, new = encoder.fit(memory), encoder.transform(queries)
    if rng.random() < 0.85:
        space, _ = choose_feature_space(
            encoder, rows, labels, min(k, n_memory - 1), metric="euclidean", seed=seed
        )
    else:
        space = FeatureSpace(rng.choice(FEATURE_MAPS) if encoder.numeric else "standard")
        space.fit(encoder, rows)
    keys = {"features": (space(encoder, rows), space(encoder, new))}
    base = new_base = None
    if has_base:
        named = _random_models(rng)
        model = BaseOf([one for _, one in named], len(known))
        if min(np.bincount(labels)) < 5 and any(view == "dense" for view, _ in named):
            return None  # too few rows of a class for folds
        views = [[getattr(encoder, view)(part) for view, _ in named] for part in (rows, new)]
        base = torch.from_numpy(model.fit(views[0], labels, seed)).float()
        new_base = torch.from_numpy(model.predict(views[1])).float()
        old, query = keys["features"]
        keys["supervised"] = supervised_keys(old, base), supervised_keys(query, new_base)
    spaces = []
    for name, (old, query) in keys.items():
        remembered = RememberedSpace.of(
            old,
            torch.from_numpy(labels),
            n_classes=len(known),
            n_columns=encoder.n_columns,
            supervised=name == "supervised",
            base_log_proba=base,
        )
        found = topk_neighbors(query, old, min(k, n_memory))
        spaces.append(remembered.describe(found, new_base))
    return Task(spaces, new_base, torch.from_numpy(of_queries), len(known), table.source)


def few_first(rng: np.random.Generator, table: Table) -> tuple[Table, int]:
    """Put the same small number of rows per class first: a memory as in few-shot learning."""
    n_each = int(rng.choice([1, 1, 2, 3, 5]))
    order = rng.permutation(len(table.labels))
    nth = pd.Series(table.labels[order]).groupby(table.labels[order]).cumcount().to_numpy()
    order = np.concatenate([order[nth < n_each], order[nth >= n_each]])
    frame = table.frame.iloc[order].reset_index(drop=True)
    return Table(frame, table.labels[order], table.source), int((nth < n_each).sum())


def memory_size(rng: np.random.Generator) -> int:
    """Mostly 16 to 1,600 rows; some of the tasks have fewer or more."""
    edges = ((16, 1600), (3, 16), (1600, 6400))[rng.choice(3, p=[0.77, 0.2, 0.03])]
    return int(np.exp(rng.uniform(*np.log(edges))))


def draw_task(rng: np.random.Generator, table: Table | None, relabel: float = 0.0) -> Task | None:
    """Draw a task from a table, its labels as they are or not, or from a synthetic one."""
    n_memory = memory_size(rng)
    if table is None:
        table = synthetic_table(rng, n_memory + N_QUERIES)
    elif rng.random() < relabel:
        table = relabelled(rng, table)
    n_memory = min(n_memory, int(0.75 * len(table.labels)))
    table = varied(rng, table, n_memory + N_QUERIES)
    n_memory = min(n_memory, int(0.75 * len(table.labels)))
    if n_memory < 64 and rng.random() < 0.2:
        table, n_memory = few_first(rng, table)
    k = int(rng.choice([32, 32, 32, 32, 32, 32, 24, 16, 64]))
    return make_task(rng, table, n_memory, k=k, has_base=rng.random() < 0.67)
