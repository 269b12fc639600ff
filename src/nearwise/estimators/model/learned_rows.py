"""Recognition of training rows by their content."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nearwise.estimators.inputs.by_text import as_read
from nearwise.estimators.inputs.columns import counts_rows
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel
from nearwise.estimators.uncertainty.explain import Parts, make_parts

# Tolerance of equal numbers, as a share of the column's spread. A file with 6 digits is more exact,
# and the classifier cannot distinguish two rows that differ by less in every column.
_SAME = 1e-5


class LearnedRows(NamedTuple):
    """Matches of given rows with the training rows of a classifier.

    Attributes
    ----------
    ids : int64 ndarray of shape (n,)
        Id in `memory_` of the equal remembered row; -1 if there is none.
    repeats : float
        Share of the remembered rows that equal another one, in [0, 1]. About the same share of
        new rows will equal a remembered row, and be mistaken for it.
    n_forgotten : int
        Number of training rows removed since; they cannot be recognized.
    compared : tuple of str
        Columns that the model leaves out and both tables have (ids): rows with different values
        in them are different rows.
    """

    ids: np.ndarray
    repeats: float
    n_forgotten: int
    compared: tuple[str, ...]

    @property
    def new(self) -> np.ndarray:
        """Whether each row is new, not a training row, bool (n,)."""
        fresh: np.ndarray = self.ids < 0
        return fresh


Cell = tuple[str | None, ...]  # values of a row in the columns that distinguish equal rows


def find_learned(
    model: FittedModel, rows: AnyRows, labels: np.ndarray | None, given: Any = None
) -> LearnedRows:
    """Find the given rows among the remembered rows of a model.

    Parameters
    ----------
    model : FittedModel
    rows : Encoded or EncodedImages
    labels : int64 ndarray of shape (n,), optional
        Class positions of `rows`; among equal rows, one with the same label is preferred.
    given : DataFrame, optional
        The original rows, including the columns that the model leaves out.
    """
    predictor, bank = model.predictor, model.bank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fit and add have issued them already
        known = predictor.encoder.transform(model.rows)
    own = (bank.labels.argmax(1) if bank.is_soft else bank.labels).numpy()
    groups = _grouped(known.digests())
    names, cells = _told_apart(predictor.encoder, model.rows, given)
    digests = _digests_among(groups, predictor.encoder, known, rows)
    at = _assigned(groups, digests, own, labels, cells)
    ids = np.where(at < 0, -1, bank.ids.numpy()[at])
    repeated = sum(len(group) for group in groups.values() if len(group) > 1)
    return LearnedRows(ids, repeated / len(own), bank.next_id - len(bank), tuple(names))


def predict_learned(model: FittedClassifier, found: LearnedRows) -> tuple[np.ndarray, Parts]:
    """Leave-one-out predictions of training rows; see `Review.predict_learned`."""
    predictor, bank = model.predictor, model.bank
    rows = np.flatnonzero(found.ids >= 0)
    at = bank.positions(found.ids[rows])
    known = predictor.judged[at]
    calibration = predictor.calibration()
    answer = calibration.corrected(predictor.predict_left_out(model.n_classes, at[known]))
    return rows[known.numpy()], make_parts(answer, calibration)


def _digests_among(groups: dict[int, list[int]], encoder: Any, known: Any, rows: Any) -> np.ndarray:
    """Digests of given rows; of the remembered row if both are equal up to rounding."""
    digests = rows.digests()
    strange = np.flatnonzero([digest not in groups for digest in digests.tolist()])
    if not rows.numbers.shape[1] or not len(strange):
        return digests
    first = np.array([positions[0] for positions in groups.values()])
    near = _nearly_equal(encoder, known.take(first), rows.take(strange))
    names = np.array(list(groups))
    digests[strange[near >= 0]] = names[near[near >= 0]]
    return digests


def _grouped(digests: np.ndarray) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for position, digest in enumerate(digests.tolist()):
        groups[digest].append(position)
    return dict(groups)


def _told_apart(
    encoder: Any, known: Any, given: Any
) -> tuple[list[str], tuple[list[Cell], list[Cell]] | None]:
    """Columns outside the model that both tables have, and the values of their rows.

    Numbers that count the rows of the new table do not identify a row, and are skipped.
    """
    if not (isinstance(known, pd.DataFrame) and isinstance(given, pd.DataFrame)):
        return [], None
    known, given = (table.set_axis(encoder.columns, axis=1) for table in (known, given))
    names = [
        name
        for name in encoder.left_out
        if known[name].notna().any()
        and given[name].notna().any()
        and _is_moment(known[name]) == _is_moment(given[name])
        and not counts_rows(given[name], name)
    ]
    return names, (_cells(known, names), _cells(given, names)) if names else None


def _is_moment(column: pd.Series) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(column))


def _cells(table: pd.DataFrame, names: Sequence[str]) -> list[Cell]:
    """Text of each row's values in some columns, independent of file format; None for a gap."""
    columns = [[_cell(value) for value in table[name].tolist()] for name in names]
    return list(zip(*columns, strict=True))


def _cell(value: Any) -> str | None:
    if pd.isna(value) is True:
        return None
    fraction = isinstance(value, float) and not value.is_integer()
    return f"{value:.5g}" if fraction else as_read(value)


def _assigned(
    groups: dict[int, list[int]],
    digests: np.ndarray,
    own: np.ndarray,
    labels: np.ndarray | None,
    cells: tuple[list[Cell], list[Cell]] | None = None,
) -> np.ndarray:
    """Match each row with a remembered row of equal digest, in turn, preferring its label.

    `cells` of remembered and given rows: rows with different cells are not equal, gaps aside.
    """
    found = np.full(len(digests), -1)
    used: dict[tuple[int, int], int] = defaultdict(int)
    by_cell: dict[int, dict[Cell, list[int]]] = {}
    for row, digest in enumerate(digests.tolist()):
        group = groups.get(digest)
        if group is not None and cells is not None:
            if digest not in by_cell:
                by_cell[digest] = _grouped_by_cell(group, cells[0])
            group = _with_cell(by_cell[digest], cells[1][row])
        if not group:
            continue
        label = -1 if labels is None else int(labels[row])
        alike = [position for position in group if own[position] == label] or group
        found[row] = alike[used[digest, label] % len(alike)]
        used[digest, label] += 1
    return found


def _grouped_by_cell(group: list[int], known: list[Cell]) -> dict[Cell, list[int]]:
    cells: dict[Cell, list[int]] = defaultdict(list)
    for position in group:
        cells[known[position]].append(position)
    return dict(cells)


def _with_cell(group: dict[Cell, list[int]], cell: Cell) -> list[int]:
    """Rows of a group with the given cell; a gap in either one matches any value."""
    if cell in group:
        return group[cell]
    vague = group if None in cell else [one for one in group if None in one]
    return [
        position
        for one in vague
        if all(a == b or a is None or b is None for a, b in zip(one, cell, strict=True))
        for position in group[one]
    ]


def _nearly_equal(encoder: TableEncoder, known: Encoded, queries: Encoded) -> np.ndarray:
    """Position of a remembered row that differs only by rounding; -1 if there is none.

    Rows are projected onto a random line; only rows that are close on it are compared.
    """
    found = np.full(len(queries), -1)
    middle = np.array(encoder.median)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column may be all gaps after changes
        spread = np.nan_to_num(np.subtract(*np.nanpercentile(known.numbers, [75, 25], axis=0)))
    unit = np.where(spread > 0, spread, 1.0)
    draw = np.random.default_rng(0).uniform(0.5, 1.0, known.numbers.shape[1] + known.codes.shape[1])
    of_numbers, of_codes = np.split(draw, [known.numbers.shape[1]])

    def along(rows: Encoded) -> np.ndarray:
        numbers = np.nan_to_num((rows.numbers - middle) / unit)
        return np.asarray(numbers @ of_numbers + rows.codes @ of_codes)

    allowed = _SAME * (spread + np.abs(np.nan_to_num(queries.numbers - middle)))
    position = along(known)
    order = np.argsort(position)
    width = (allowed / unit) @ of_numbers + 1e-9
    center = along(queries)
    start = np.searchsorted(position[order], center - width, side="left")
    stop = np.searchsorted(position[order], center + width, side="right")
    for row in np.flatnonzero(stop > start):
        some = order[start[row] : stop[row]]
        gap = np.abs(known.numbers[some] - queries.numbers[row])
        both_missing = np.isnan(known.numbers[some]) & np.isnan(queries.numbers[row])
        same = ((gap <= allowed[row]) | both_missing).all(axis=1)
        same &= (known.codes[some] == queries.codes[row]).all(axis=1)
        if same.any():
            found[row] = some[same.argmax()]
    return found
