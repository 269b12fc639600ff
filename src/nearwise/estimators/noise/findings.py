"""Findings: rows and groups of a memory to check by hand, the worst of each kind first."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FittedRegressor
from nearwise.estimators.noise.label_issues import label_issues, most_neighbors
from nearwise.estimators.noise.number_issues import number_issues
from nearwise.estimators.query import kneighbors
from nearwise.memory import make_index
from nearwise.metrics.calibration import wilson_interval

IssueKind = Literal["label", "copy", "outlier", "group"]
KINDS: tuple[IssueKind, ...] = get_args(IssueKind)
_N_NEIGHBORS = 5
_COPY = 0.01  # largest distance of a copy, as a share of the median neighbor distance
_ALIKE = 0.05  # largest difference of a copy's value, in standard deviations or pixel ranges
_N_AROUND = 10  # neighbors in the distance of an outlier
_FEW_DIMENSIONS = 8
_FAR, _FAR_IN_FEW = 1.7, 2.0  # interquartile ranges beyond the third quartile
_FEWEST_IN_GROUP = 20
_MOST_VALUES = 50  # most frequent values of a category
_MOST_COLUMNS = 200  # most columns of a table whose groups are examined
_N_PARTS = 4  # quarters of a column of numbers
_LEVEL = 0.95  # confidence over all groups together
_MOST_MEMBERS = 500  # ids of a group, wrongly predicted rows first


def findings(model: FittedModel, issues: pd.DataFrame | None = None) -> pd.DataFrame:
    """List rows and groups to check; see `Review.findings`.

    `issues` are the issues of the model, if known.
    """
    model.predictor.views.require_all("Findings are of all remembered rows, which")
    alone = model.without_groups()  # copies are in one group, and must find each other
    nearest = kneighbors(alone, None, min(_N_NEIGHBORS, most_neighbors(alone)))
    if issues is None:
        issues = rank(model, _N_NEIGHBORS)
    parts = [_labels(issues), _copies(model, *nearest), _outliers(model), _groups(model, issues)]
    columns = ["kind", "id", "given", "suggested", "score", "ids", "what"]
    rows = [row for part in parts for row in part]
    found = pd.DataFrame(rows, columns=columns, dtype=object)
    if model.row_names is not None:
        shown = dict(zip(model.bank.ids.tolist(), model.row_names.tolist(), strict=True))
        found["show"] = [shown.get(one) for one in found["id"].fillna(-1)]
    return found.astype({"id": "Int64", "score": float})


def rank(model: FittedModel, n_neighbors: int) -> pd.DataFrame:
    """Rank the remembered rows by suspicion; see `Review.issues`."""
    if isinstance(model, FittedRegressor):
        return number_issues(model, n_neighbors)
    assert isinstance(model, FittedClassifier)
    return label_issues(model, n_neighbors, "nearwise")


def _labels(issues: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Rows with suspicious labels, most suspicious first."""
    if "low" in issues:
        for row in issues[issues["suspicion"] > 0.5].itertuples():
            what = f"between {row.low:.4g} and {row.high:.4g} without the row itself, given "
            what += f"{row.given:.4g}"
            yield "label", row.id, row.given, row.suggested, row.suspicion, row.neighbors, what
        return
    for row in issues[issues["given"] != issues["suggested"]].itertuples():
        what = f"{row.suggested} has probability {row.proba_suggested:.3f}, {row.given} has "
        what += f"{row.proba_given:.3f}"
        yield "label", row.id, row.given, row.suggested, row.suspicion, row.neighbors, what


def _copies(
    model: FittedModel, distances: np.ndarray, ids: np.ndarray
) -> Iterator[tuple[Any, ...]]:
    """Rows with a nearly identical neighbor; pairs with different labels come first."""
    usual = float(np.median(distances[:, -1]))
    near = (distances <= _COPY * usual) if usual > 0 else distances == 0
    given, own = model.labels_at(), model.bank.ids.numpy()
    found = []
    for row in np.flatnonzero(near[:, 0]):
        there = model.bank.positions(ids[row][near[row]]).numpy()
        # Different rows may have equal keys, so their values are compared by the encoder.
        apart = model.predictor.encoder.apart(model.rows_at([int(row), *there.tolist()]))
        others = tuple(own[there[apart <= _ALIKE]].tolist())
        if not others:
            continue
        labels = given[model.bank.positions(others).numpy()]
        differ = bool((labels != given[row]).any())
        same = bool((apart[apart <= _ALIKE] == 0).any())
        what = "same values as" if same else "nearly the same values as"
        what += f" {_named(others)}" + (", with another label" if differ else "")
        ratio = (
            float(distances[row][near[row]][apart <= _ALIKE].min() / usual) if usual > 0 else 0.0
        )
        found.append((not differ, ratio, own[row], given[row], others, what))
    for _, ratio, row_id, label, others, what in sorted(found, key=lambda one: one[:3]):
        yield "copy", row_id, label, None, 1.0 - ratio, others, what


def _outliers(model: FittedModel) -> Iterator[tuple[Any, ...]]:
    """Rows that are farther from their neighbors than nearly all others.

    Compares mean distances to ten neighbors: by angle, with the threshold of cleanlab's Datalab
    (https://docs.cleanlab.ai, outlier issues); in few dimensions, where angles mean little, by
    logarithms of Euclidean distances.
    """
    keys, own = model.bank.keys["features"], model.bank.ids
    few = keys.shape[1] <= _FEW_DIMENSIONS
    index = make_index("auto", "euclidean" if few else "cosine", len(own)).fit(keys, own)
    near = index.search(keys, min(_N_AROUND, len(own) - 1), own)
    far = near.distances.double().mean(1).numpy()
    usual = float(np.median(far))
    if usual <= 0:
        return  # most rows have identical neighbors
    compared = np.log(np.maximum(far, 1e-12 * usual)) if few else far
    low, high = np.quantile(compared, [0.25, 0.75])
    rows = np.flatnonzero(compared > high + (_FAR_IN_FEW if few else _FAR) * (high - low))
    given = model.labels_at()
    for row in rows[np.argsort(-far[rows], kind="stable")]:
        times = far[row] / usual
        what = f"its neighbors are {times:.1f} times as far as usual"
        others = tuple(own[near.indices[row][:_N_NEIGHBORS]].tolist())
        yield "outlier", int(own[row]), given[row], None, times, others, what


def _groups(model: FittedModel, issues: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Find groups with clearly worse predictions than the other rows.

    By Fisher's exact test, one-sided, at 95 % with a Bonferroni correction over the groups.
    """
    is_number = "low" in issues
    if not is_number:
        issues = issues[issues["independent"]]
    away = issues["given"] != issues["suggested"]
    if is_number:
        away = (issues["given"] - issues["suggested"]).abs()
    wrong = issues.loc[away > (away.median() if is_number else 0), "id"]
    own = model.bank.ids.numpy()
    ranked, correct = np.isin(own, issues["id"]), ~np.isin(own, wrong)
    n_rows = int(ranked.sum())
    groups = [
        (name, members & ranked)
        for name, members in _group_members(model)
        if _FEWEST_IN_GROUP <= (members & ranked).sum() <= n_rows - _FEWEST_IN_GROUP
    ]
    by_row = pd.Series(away.to_numpy(dtype=float), issues["id"].to_numpy())
    off = by_row.reindex(own[ranked]).to_numpy()
    found = []
    for name, members in groups:
        n_members, n_wrong = int(members.sum()), int((~correct[members]).sum())
        chance = hypergeom.sf(n_wrong - 1, n_rows, len(wrong), n_members)
        if n_wrong and chance * len(groups) < 1 - _LEVEL:
            inside = members[ranked]
            gap, said = (_farther if is_number else _less_right)(off[inside], off[~inside])
            ids = [*own[members & ~correct].tolist(), *own[members & correct].tolist()]
            found.append((gap, tuple(ids[:_MOST_MEMBERS]), f"{name}: {said}"))
    for gap, rows, what in sorted(found, key=lambda one: -one[0]):
        yield "group", pd.NA, None, None, gap, rows, what


def _less_right(wrong: np.ndarray, others: np.ndarray) -> tuple[float, str]:
    """Gap in accuracy of a group and the other rows, and its description."""
    n, right = len(wrong), 1 - float(wrong.mean())
    low, high = wilson_interval(np.array([right]), np.array([float(n)]), _LEVEL)
    rest = 1 - float(others.mean())
    ends = f"95 % interval {low[0]:.1%} to {high[0]:.1%}"
    return rest - right, f"{right:.1%} of {n} rows right ({ends}), {rest:.1%} of the others"


def _farther(off: np.ndarray, others: np.ndarray) -> tuple[float, str]:
    """Gap in the mean distance to the suggestions, and its description."""
    mean, rest = float(off.mean()), float(others.mean())
    spread = 1.96 * float(off.std(ddof=1)) / len(off) ** 0.5
    said = f"{len(off)} rows are {mean:.4g} off on average (95 % interval {mean - spread:.4g} to "
    return mean - rest, f"{said}{mean + spread:.4g}), the others {rest:.4g}"


def _group_members(model: FittedModel) -> Iterator[tuple[str, np.ndarray]]:
    given, encoder = model.labels_at(), cast(TableEncoder, model.predictor.encoder)
    for label in model.classes if isinstance(model, FittedClassifier) else ():
        yield f"label {label}", np.asarray(given == label)
    if len(encoder.columns) > _MOST_COLUMNS or not (encoder.categorical or encoder.numeric):
        return
    encoded = encoder.transform(model.rows)
    for at, name in enumerate(encoder.categorical):
        for code, value in enumerate(encoder.categories[name][:_MOST_VALUES], start=1):
            yield f"{name} = {value}", encoded.codes[:, at] == code
    for at, name in enumerate(encoder.numeric):
        numbers = encoded.numbers[:, at]
        edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _N_PARTS + 1)))
        for number, (low, high) in enumerate(pairwise(edges)):
            above = numbers >= low if number == 0 else numbers > low
            bracket = "[" if number == 0 else "("
            yield f"{name} in {bracket}{low:.4g}, {high:.4g}]", above & (numbers <= high)


def _named(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:3]))
    return ("row " if len(ids) == 1 else "rows ") + shown + (" and more" * (len(ids) > 3))
