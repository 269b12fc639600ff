"""Tasks that the pretrained head for numbers learns from: columns as targets, and functions.

A task is a memory, a base or none, and queries that neither has seen.
"""

import math
import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from pretrain_tasks import (
    N_QUERIES,
    Table,
    _damaged,
    _network_scores,
    _process_scores,
    _tree_scores,
    _values,
    memory_size,
)
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from torch import Tensor

from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.row_models import FEATURE_MAPS, FeatureSpace, beside_locations
from nearwise.functional import topk_neighbors
from nearwise.nn import NumberOutput, NumberSet, PretrainedNumberHead, RememberedNumbers
from nearwise.nn.neighbor_set import OWN_NEIGHBORS, typical_distance

# Families of the tables that benchmarks/regression.py reports: they teach nothing.
REPORTED = ("abalone", "energy")
LOG_SCORE = 0.15  # weight of the negative log-density beside the CRPS
# What is known of every neighbor, in the order of a NumberSet.
FACTS = NumberSet._fields[2:9]
_FEWEST_VALUES = 8  # of a column that may be a target


@dataclass
class NumberTask:
    """What the head is given of a task's queries, and their targets in its units."""

    spaces: list[NumberSet]
    targets: torch.Tensor
    source: str


@dataclass
class Numbers:
    """Rows (n, columns) as a frame, targets float64 (n,), and where they come from."""

    frame: pd.DataFrame
    targets: np.ndarray
    source: str


def of_column(rng: np.random.Generator, table: Table) -> Numbers | None:
    """Take a column of numbers as the target of the others, classes among them."""
    frame = table.frame.select_dtypes("number")
    usable = [name for name in frame if frame[name].nunique() >= _FEWEST_VALUES]
    if not usable:
        return None
    name = usable[rng.integers(len(usable))]
    rows = frame[name].notna().to_numpy()
    rest = table.frame[rows].drop(columns=name).reset_index(drop=True)
    if rng.random() < 0.5:
        rest["class of the table"] = pd.Series(table.labels[rows]).map(lambda c: f"c{c}")
    if rest.shape[1] > 2 and rng.random() < 0.6:
        width = max(2, int(rest.shape[1] * rng.uniform(0.2, 1.0)))
        rest = rest.iloc[:, np.sort(rng.permutation(rest.shape[1])[:width])]
    return Numbers(rest, frame[name].to_numpy(float)[rows], f"{table.source}: {name}")


def _function(rng: np.random.Generator, x: np.ndarray, n_out: int) -> np.ndarray:
    make = (_tree_scores, _process_scores, _network_scores)[rng.integers(3)]
    scores = make(rng, x, n_out)
    found: np.ndarray = (scores - scores.mean(0)) / (scores.std(0) + 1e-9)
    return found


def _noise(rng: np.random.Generator, scale: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Draw noise of a scale (n,): normal, heavy-tailed, skewed, or of two modes."""
    kind, n = rng.choice(5, p=[0.4, 0.15, 0.15, 0.15, 0.15]), len(scale)
    if kind == 0:
        drawn = rng.normal(size=n)
    elif kind == 1:
        drawn = rng.standard_t(rng.uniform(1.5, 5), size=n)
    elif kind == 2:
        drawn = rng.gamma(shape := rng.uniform(0.5, 4), size=n) - shape
    elif kind == 3:  # how often which mode comes depends on the row
        share = 1 / (1 + np.exp(-rng.uniform(0, 4) * second))
        drawn = rng.uniform(1, 3) * (rng.random(n) < share) + 0.3 * rng.normal(size=n)
    else:
        drawn = rng.uniform(-1.7, 1.7, size=n)
    noise: np.ndarray = scale * drawn
    return noise


def synthetic(rng: np.random.Generator, table: Table | None, n: int) -> Numbers:
    """Draw targets from a random function of some columns, of a table or of random ones."""
    if table is None:
        x = _values(rng, n, int(np.exp(rng.uniform(np.log(2), np.log(25)))))
        frame, source = None, "synthetic"
    else:
        encoder = TableEncoder()
        x = encoder.dense(encoder.fit(table.frame)).clip(-4, 4).astype(float)
        x = x[:, rng.permutation(x.shape[1])[: rng.integers(2, 13)]]
        frame, source = table.frame, f"{table.source}, function"
    signal, log_scale, second = _function(rng, x, 3).T
    scale = np.exp(rng.choice([0.0, 0.5, 1.0]) * log_scale)
    scale *= np.exp(rng.uniform(np.log(0.03), np.log(3)))
    y = signal + _noise(rng, scale, second)
    if frame is None:
        if rng.random() < 0.5:
            x = np.concatenate([x, _values(rng, n, int(rng.integers(1, 2 * x.shape[1] + 1)))], 1)
        frame = _damaged(rng, x)
    return Numbers(frame, y, source)


def reshaped(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    """Skew, round, clip or turn targets around."""
    y = (y - y.mean()) / max(y.std(), 1e-12)
    draw = rng.random()
    if draw < 0.15:
        y = np.exp(rng.uniform(0.3, 1.5) * y.clip(-6, 6))
    elif draw < 0.25:
        y = np.round(y * rng.uniform(0.5, 4))
    elif draw < 0.33:
        y = np.maximum(y, np.quantile(y, rng.uniform(0.1, 0.6)))
    return -y if rng.random() < 0.5 else y


def _models(rng: np.random.Generator, n: int) -> list[tuple[str, Any]]:
    """Draw a base: a forest out of bag, or one to three models by folds."""
    seed = int(rng.integers(2**31))
    leaf, depth = int(rng.choice([1, 1, 1, 2, 5])), None if rng.random() < 0.8 else 5
    trees = int(np.exp(rng.uniform(np.log(30), np.log(160))))
    forest = {"n_estimators": trees, "min_samples_leaf": leaf, "max_depth": depth}
    forest |= {"random_state": seed, "bootstrap": True}
    kind = ExtraTreesRegressor if rng.random() < 0.7 else RandomForestRegressor
    if rng.random() < 0.5:
        return [("ordinal_filled", kind(oob_score=True, **forest))]
    boosting: dict[str, Any] = {"learning_rate": 0.08, "max_iter": 100, "early_stopping": False}
    boosting |= {"max_leaf_nodes": int(rng.choice([4, 8, 31])), "random_state": seed}
    network = MLPRegressor(hidden_layer_sizes=(48, 48), alpha=0.1, max_iter=60, random_state=seed)
    all_of = [
        ("ordinal_filled", kind(**forest | {"n_estimators": 60})),
        ("ordinal", HistGradientBoostingRegressor(**boosting)),
        ("dense", Ridge(float(np.exp(rng.uniform(-3, 4))))),
        ("dense", KNeighborsRegressor(min(10, n // 3))),
        ("dense", network),
    ]
    chosen = rng.permutation(len(all_of))[: rng.choice([1, 2, 3], p=[0.35, 0.35, 0.3])]
    return [all_of[at] for at in chosen]


def _predictions(
    models: list[tuple[str, Any]], encoder: TableEncoder, rows: Any, new: Any, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of rows by models that did not see them, and of new ones; means over models."""
    left, fresh = [], []
    mean, scale = y.mean(), max(y.std(), 1e-12)
    target = (y - mean) / scale
    for view, model in models:
        known, queries = (getattr(encoder, view)(part) for part in (rows, new))
        if getattr(model, "oob_score", False):
            model.fit(known, target)
            out = np.nan_to_num(model.oob_prediction_)
            each = [model.predict(queries)]
        else:
            out, each = np.zeros(len(y)), []
            for train, held in KFold(5, shuffle=True, random_state=0).split(known):
                model.fit(known[train], target[train])
                out[held] = model.predict(known[held])
                each.append(model.predict(queries))
        left.append(out)
        fresh.append(np.mean(each, axis=0))
    return np.mean(left, 0) * scale + mean, np.mean(fresh, 0) * scale + mean


def make_task(
    rng: np.random.Generator, table: Numbers, n_memory: int, *, has_base: bool
) -> NumberTask | None:
    """Remember the first rows, look at the others; None where the targets hardly differ."""
    memory, queries = table.frame.iloc[:n_memory], table.frame.iloc[n_memory:][:N_QUERIES]
    memory = memory.loc[:, memory.notna().any()]
    y, new_y = table.targets[:n_memory], table.targets[n_memory:][:N_QUERIES]
    if len(np.unique(y)) < 3 or len(new_y) < 8 or not memory.shape[1]:
        return None
    if rng.random() < 0.15:  # targets of other rows
        wrong = rng.random(len(y)) < rng.uniform(0, 0.3)
        y = np.where(wrong, rng.permutation(y), y)
    encoder = TableEncoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows, new = encoder.fit(memory), encoder.transform(queries[memory.columns])
        space = FeatureSpace(rng.choice(FEATURE_MAPS) if encoder.numeric else "standard")
        space.fit(encoder, rows)
        keys = {"features": (space(encoder, rows), space(encoder, new))}
        left = fresh = None
        if has_base:
            made = _predictions(_models(rng, n_memory), encoder, rows, new, y)
            left, fresh = (torch.from_numpy(part) for part in made)
            unit = float(y.mean()), max(float(y.std()), 1e-30)
            old, query = keys["features"]
            keys["supervised"] = (
                beside_locations(old, left, *unit),
                beside_locations(query, fresh, *unit),
            )
    ids, k = torch.arange(n_memory), 32 if rng.random() < 0.8 else int(rng.integers(4, 32))
    spaces = []
    for name, (old, query) in keys.items():
        m = min(OWN_NEIGHBORS, n_memory - 1)
        own = topk_neighbors(old, old, m, query_ids=ids, key_ids=ids)
        remembered = RememberedNumbers(
            torch.from_numpy(y),
            own.indices,
            own.distances,
            typical_distance(own.distances),
            encoder.n_columns,
            supervised=name == "supervised",
            locations=left,
        )
        spaces.append(remembered.describe(topk_neighbors(query, old, min(k, n_memory)), fresh))
    first = spaces[0]
    targets = (torch.from_numpy(new_y) - first.location) / first.unit
    if not bool(torch.isfinite(targets).all()):
        return None
    return NumberTask(spaces, targets.clamp(-1e4, 1e4).float(), table.source)


def draw_task(
    rng: np.random.Generator, table: Table | None, columns: float = 0.7
) -> NumberTask | None:
    """Draw a task from a table (a column of it, or a function of them) or from a synthetic one."""
    n_memory = max(memory_size(rng), 12)
    if table is None:
        numbers = synthetic(rng, None, n_memory + N_QUERIES)
    else:
        some = rng.permutation(len(table.labels))[: n_memory + N_QUERIES]
        table = Table(
            table.frame.iloc[some].reset_index(drop=True), table.labels[some], table.source
        )
        taken = of_column(rng, table) if rng.random() < columns else None
        numbers = taken or synthetic(rng, table, 0)
    order = rng.permutation(len(numbers.targets))
    frame = numbers.frame.iloc[order].reset_index(drop=True)
    numbers = Numbers(frame, reshaped(rng, numbers.targets[order]), numbers.source)
    n_memory = min(n_memory, int(0.8 * len(order)))
    if n_memory < 10:
        return None
    return make_task(rng, numbers, n_memory, has_base=rng.random() < 0.8)


class NumberTasks:
    """The head of the regressor."""

    folder, head = "numbers", PretrainedNumberHead

    @staticmethod
    def may_use(name: str) -> bool:
        """Whether a table may be drawn from."""
        return name.split("-")[0] not in REPORTED

    @staticmethod
    def draw(rng: np.random.Generator, table: Table | None, part: str) -> NumberTask | None:
        """Draw a task; of tables for development only columns of them."""
        return draw_task(rng, table, columns=0.7 if part == "train" else 1.0)

    @staticmethod
    def packed(task: NumberTask) -> dict[str, np.ndarray]:
        """A task as small arrays."""
        arrays = {"labels": task.targets.numpy(), "source": np.array(task.source)}
        for at, space in enumerate(task.spaces):
            facts = np.stack([getattr(space, name).numpy() for name in FACTS], axis=1)
            arrays[f"facts{at}"] = facts.clip(-6e4, 6e4).astype(np.float16)
            arrays[f"summary{at}"] = space.summary.numpy().astype(np.float16)
        arrays["atoms"] = space.atoms[0].numpy()
        return arrays

    @staticmethod
    def group(task: dict[str, Any]) -> tuple[Any, ...]:
        """Tasks of one group have as many spaces."""
        return ("facts1" in task,)

    @staticmethod
    def batch(rng: np.random.Generator, corpus: Any, n_tasks: int, n_queries: int) -> Any:
        """Draw a batch: spaces, and targets in their units."""
        some = corpus.some(rng, list(corpus.groups), n_tasks, n_queries)
        return batch_of(some, 2 if rng.random() < 0.85 else 1)

    @staticmethod
    def loss(head: PretrainedNumberHead, batch: Any) -> tuple[Tensor, Tensor]:
        """CRPS of a batch, in units, and what is minimised."""
        spaces, targets = batch
        output = head(spaces)
        crps = output.crps(targets).clamp_max(20.0).mean()
        return crps, crps - LOG_SCORE * output.log_density(targets).clamp_min(-20.0).mean()

    @staticmethod
    @torch.no_grad()
    def development(head: PretrainedNumberHead, dev: Any) -> dict[str, float]:
        """Mean CRPS over that of all residuals, and NLL, over the tasks kept for development."""
        found: dict[str, list[float]] = defaultdict(list)
        for task in dev.tasks:
            spaces, targets = batch_of([(task, torch.arange(len(task["labels"])))], 2)
            output = head.predict(spaces)
            atoms, nothing = task["atoms"].expand(len(targets), -1), targets.new_zeros(0)
            alone = nothing.expand(len(targets), 0)
            width, all_of = torch.full_like(targets, 0.05), torch.ones_like(targets)
            of_all = NumberOutput(atoms, (alone,), width, all_of)
            mode = "base" if len(spaces) > 1 else "neighbors"
            crps = output.crps(targets).mean() / of_all.crps(targets).mean().clamp_min(1e-6)
            found[f"{mode}: CRPS"].append(float(crps))
            found[f"{mode}: NLL"].append(float(-output.log_density(targets).mean()))
        return {name: float(np.mean(values)) for name, values in found.items()}


def batch_of(
    some: list[tuple[dict[str, Any], Tensor]], n_spaces: int
) -> tuple[list[NumberSet], Tensor]:
    """Queries of several tasks side by side, neighbors padded."""
    spaces = []
    for space in range(n_spaces):
        if f"facts{space}" not in some[0][0]:
            break
        k = max(task[f"facts{space}"].shape[2] for task, _ in some)
        parts = [task[f"facts{space}"][at].float() for task, at in some]
        facts = torch.cat([F.pad(p, (0, k - p.shape[2]), value=math.nan) for p in parts])
        gone = facts[:, 0].isnan()
        facts = facts.nan_to_num(0.0, posinf=6e4, neginf=-6e4)
        facts[:, -1].masked_fill_(gone, -math.inf)
        summary = torch.cat([task[f"summary{space}"][at].float() for task, at in some])
        atoms = torch.cat([task["atoms"].expand(len(at), -1) for task, at in some])
        nothing = torch.zeros(len(facts), dtype=torch.float64)
        spaces.append(NumberSet(nothing, nothing + 1, *[*facts.unbind(1), summary, atoms]))
    return spaces, torch.cat([task["labels"][at] for task, at in some])
