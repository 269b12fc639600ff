"""Input of a fit: checked settings, the encoded training rows and their folds."""

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Number
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from pydantic import ConfigDict, Field
from sklearn.model_selection import (
    KFold,
    PredefinedSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
)
from torch import Tensor

from nearwise.data import hold_out
from nearwise.estimators.inputs.groups import copied_rows
from nearwise.estimators.inputs.images import TTAView
from nearwise.estimators.inputs.labels import judging_weight, lone_rows
from nearwise.estimators.inputs.rows import AnyEncoder, AnyRows
from nearwise.estimators.inputs.table import LARGE, Encoded, TableEncoder
from nearwise.estimators.model.groups import shared_groups
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel, Target
from nearwise.estimators.model.memory_views import COPIES, GROUP
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.progress import Progress
from nearwise.estimators.settings import Preset, Settings
from nearwise.functional import Metric
from nearwise.names import listed

LATEST = "latest"  # value of cv that holds out the last rows
_LATEST_SHARE = 0.2
FEWEST_HELD_OUT = 20  # fewest held-out rows for heads and temperatures
MOST_FOLDS = 100  # each fits a forest and fills a memory

Fold = tuple[np.ndarray, np.ndarray]  # positions of training rows and of held-out rows


class Unseen(NamedTuple):
    """Keys and predictions of the training rows, independent of their own given labels.

    `keys` (n, width): neighbors in this space do not depend on labels. `log_proba` (n, C) are
    predictions of the given labels by networks not trained on the row; None without networks.
    `agreement` is the share of held-out rows with the same class predicted by two networks.
    """

    keys: Tensor
    log_proba: Tensor | None = None
    agreement: float | None = None


class LabelFitter:
    """Fitter of the label model of a problem; this one assumes right labels.

    `description` is plain data that distinguishes fitters; None if all labels are right.
    """

    description: Any = None

    def fit(
        self,
        problem: "Problem",
        settings: "FitSettings",
        unseen: Callable[[], Unseen],
        progress: Progress,
    ) -> None:
        """Set `problem.label_model`; `unseen` returns keys and predictions without own labels."""


class FitSettings(Settings):
    """Settings and parameters of the estimator, checked for the training rows.

    "auto" is resolved except in `base` (the parameter `estimator`), in `embedder`, and in `cv`
    without a hold-out split. `folds` come from a splitter, else empty.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    n_neighbors: int
    base: Any
    preset: Preset
    metric: Metric
    class_prior: np.ndarray | None
    seed: int
    cv: int | float | Literal["auto"]
    folds: list[Any] = Field(default=[])
    n_jobs: int | None
    checkpoint: Path | None = None
    label_fitter: LabelFitter = Field(default_factory=LabelFitter)


@dataclass
class Problem:
    """Training rows of one fit, and its record of choices and training curves.

    `views` are further views of the same rows; `ids` are ids of already remembered rows; `targets`
    are those of a regressor, with all rows in one class; `trust` (n,) are the probabilities that
    they are right, if some may be wrong; `groups` are numbers of groups left out together, and
    `group_column` is their column of the memory; `embedded` are known features of photographs;
    `is_gaussian`: the base starts with Gaussian classes, not a forest. `beside` is shared by the
    fits of several targets.
    """

    encoder: AnyEncoder
    rows: AnyRows
    labels: np.ndarray
    weight: np.ndarray | None
    n_classes: int
    folds: list[Fold] = field(default_factory=list)
    n_networks: int = 1  # per fold
    views: list[AnyRows] = field(default_factory=list)
    tta: tuple[TTAView, ...] = ()
    ids: Tensor | None = None
    targets: np.ndarray | None = None
    trust: np.ndarray | None = None
    groups: np.ndarray | None = None
    embedded: Tensor | None = None
    group_column: dict[str, Tensor] = field(default_factory=dict)
    label_model: LabelModel = AS_GIVEN
    is_gaussian: bool = False
    beside: Any = None
    choice: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def group(self, given: np.ndarray | None, *, copies: bool = True) -> None:
        """Set the groups of rows by digests (n,), or with `copies` by equal rows."""
        digests, name = given, GROUP
        if given is None and copies:
            digests, name = copied_rows(self.rows), COPIES
        if digests is None:
            return
        column = torch.from_numpy(digests)
        numbers = shared_groups(column)
        groups = None if numbers is None else numbers.numpy()
        if name == COPIES and lone_rows(self.labels, groups).all():
            return  # every class has only copies of one row
        self.group_column, self.groups = {name: column}, groups
        self.choice["groups"] = {"of": name, "n": len(np.unique(digests))}

    @property
    def shared(self) -> Any:
        """`beside` if folds and forests can be shared with other targets, else None."""
        return self.beside if self.groups is None and self.label_model.as_given else None

    def groups_at(self, rows: np.ndarray) -> np.ndarray | None:
        """Numbers of the groups of some rows, (n_rows,); None without groups."""
        return None if self.groups is None else self.groups[rows]

    def without_copies(self, folds: list[Fold]) -> list[Fold]:
        """Remove copies of held-out rows from the training parts of given folds.

        ValueError if a training part then lacks a class.
        """
        if self.groups is None or COPIES not in self.group_column:
            return folds
        lone, apart = lone_rows(self.labels, self.groups), []
        for number, (train, held_out) in enumerate(folds, 1):
            held_out = held_out[~lone[held_out]]
            is_copy = np.isin(self.groups[train], self.groups[held_out]) & ~lone[train]
            train = np.union1d(train[~is_copy], np.flatnonzero(lone))
            if len(np.unique(self.labels[train])) < self.n_classes:
                raise ValueError(
                    f"split {number} of cv learns some class from copies of rows that it holds out "
                    "alone. Give a number of folds (cv=5), or take copies for rows of their own: "
                    "fit(groups=range(len(X)))."
                )
            apart.append((train, held_out))
        return apart

    @property
    def carried(self) -> np.ndarray:
        """Class positions of the rows, or targets of a regressor, (n,)."""
        return self.labels if self.targets is None else self.targets

    @property
    def trusted_weight(self) -> np.ndarray | None:
        """Weight of each target: the row's weight times its trust, (n,); None means ones."""
        if self.trust is None or self.weight is None:
            return self.weight if self.trust is None else self.trust
        return self.weight * self.trust

    @property
    def is_held_out(self) -> bool:
        """Whether there is a hold-out split: a single fold."""
        return len(self.folds) == 1

    @property
    def all_views(self) -> list[Any]:
        """Encoded rows in all their views."""
        return [self.rows, *self.views]

    @property
    def target(self) -> Target:
        """Training labels and weights of networks."""
        return self.label_model.target(self.labels, self.weight)

    @property
    def table(self) -> tuple[TableEncoder, Encoded]:
        """Encoder and rows of a table; not for images."""
        return cast(TableEncoder, self.encoder), cast(Encoded, self.rows)

    @property
    def row_weight(self) -> Tensor:
        """Weight of each row, ones by default; float32 (n,)."""
        return torch.ones(len(self.labels)) if self.weight is None else as_float(self.weight)

    @property
    def judged(self) -> tuple[np.ndarray, np.ndarray | None, LabelModel]:
        """Arguments of left-out losses: labels and weights (n,), and the label model."""
        weight = judging_weight(self.labels, self.weight, self.groups)
        return self.labels, weight, self.label_model

    @property
    def judging_weight(self) -> Tensor:
        """Row weights, with 0 for the only row or group of a class; float32 (n,)."""
        weight = self.judged[1]
        return self.row_weight if weight is None else as_float(weight)

    @property
    def truth(self) -> Tensor:
        """Class positions, int64 (n,)."""
        return torch.from_numpy(self.labels)

    @property
    def prior(self) -> Tensor:
        """Weighted class shares, smoothed by half a row per class; float32 (C,)."""
        counts = self.label_model.class_counts(self.truth, self.row_weight, self.n_classes) + 0.5
        return counts / counts.sum()


def auto_folds(n_rows: int) -> int:
    """Choose the number of folds for `cv="auto"`: fewer for large tables."""
    return 3 if n_rows > LARGE else 5


def held_out_fold(
    labels: np.ndarray, share: float, seed: int, groups: np.ndarray | None = None
) -> Fold:
    """Hold out a share of the rows per class; with groups whole groups of about that share."""
    if groups is None:
        return hold_out(labels, share, seed)
    n_folds = max(2, round(1 / min(share, 1 - share)))
    memory, held_out = cross_fit_folds(labels, n_folds, seed, groups)[0]
    if share > 0.5:
        always = np.isin(memory, np.flatnonzero(lone_rows(labels, groups)))
        memory, held_out = np.union1d(held_out, memory[always]), memory[~always]
    if len(np.unique(groups[held_out])) < 2:
        raise ValueError(
            f"cv={share} holds out rows of one group alone, of {len(np.unique(groups))}, and heads "
            "are fitted to some of them and judged by others. Hold more out, such as cv=0.3."
        )
    return memory, held_out


def cross_fit_folds(
    labels: np.ndarray, n_folds: int, seed: int, groups: np.ndarray | None = None
) -> list[Fold]:
    """Stratified folds; the only row of a class is in every training part."""
    lone = lone_rows(labels, groups)
    rest, always = np.flatnonzero(~lone), np.flatnonzero(lone)
    of_rest = None if groups is None else groups[rest]
    return [
        (np.sort(np.concatenate([rest[train], always])), rest[held_out])
        for train, held_out in make_folds(labels[rest], n_folds, seed, of_rest)
    ]


def make_folds(
    labels: np.ndarray, n_folds: int, seed: int, groups: np.ndarray | None = None
) -> list[Fold]:
    """Stratified folds, with each group in one fold.

    At most as many folds as groups, or rows of the largest class.
    """
    largest = int(np.bincount(labels).max())
    most = largest if groups is None else min(largest, len(np.unique(groups)))
    # Without a class of two rows, stratification is impossible.
    kind = KFold if largest < 2 else StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(max(2, min(n_folds, most)), shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A rare class is missing from some folds; the base's floor and the neighbors replace it.
        warnings.filterwarnings("ignore", message="The least populated class")
        folds = list(splitter.split(np.zeros(len(labels)), labels, groups))
    return [(train, held_out) for train, held_out in folds if len(train) and len(held_out)]


def is_splitter(cv: Any) -> bool:
    """Whether `cv` specifies the held-out rows: a splitter, or pairs of positions."""
    if isinstance(cv, str | bytes | Number | type):
        return False
    return hasattr(cv, "split") or isinstance(cv, Iterable)


def has_fixed_positions(cv: Any) -> bool:
    """Whether `cv` has fixed row positions, and so fits only one table."""
    return is_splitter(cv) and (not hasattr(cv, "split") or isinstance(cv, PredefinedSplit))


def given_folds(
    cv: Any, rows: Any, labels: np.ndarray, groups: np.ndarray | None = None
) -> list[Fold]:
    """Check and return the folds of a splitter, of pairs of positions or of "latest"; else none.

    The only row (or group) of a class is in every training part.

    Raises
    ------
    ValueError
        If parts are empty, overlap, share a group or lack a class; if one of several splits holds
        out no row, or no split holds out some row; if `cv` cannot be used.
    """
    if isinstance(cv, str) and cv == LATEST:
        return [_latest(labels, groups)]
    if not is_splitter(cv):
        return []
    named = f"cv={textwrap.shorten(repr(cv), 60)}" if hasattr(cv, "split") else "cv"
    pairs = _pairs(cv, named, rows, labels, groups)
    if not pairs:
        raise ValueError(f"{named} gives no split. Give at least one, or a number of folds (cv=5).")
    if len(pairs) > MOST_FOLDS:
        raise ValueError(
            f"{named} gives more than {MOST_FOLDS} splits of {len(labels)} rows, and each takes "
            "models of its own. Give fewer, such as cv=5."
        )
    codes = np.unique(labels, return_inverse=True)[1]
    lone = lone_rows(codes, groups)
    folds: list[Fold] = []
    n_held = np.zeros(len(labels), dtype=int)
    for number, pair in enumerate(pairs, 1):
        split = f"split {number} of {named}"
        train, held_out = _parts(pair, split, len(labels))
        n_held[held_out] += 1
        learn = np.zeros(len(labels), dtype=bool)
        learn[train] = True
        if learn[held_out].any():
            raise ValueError(
                f"{split} has row {held_out[learn[held_out]][0]} in both parts. What is held out "
                "must not be learned from."
            )
        if groups is not None and len(both := np.intersect1d(groups[train], groups[held_out])):
            row = held_out[groups[held_out] == both[0]][0]
            raise ValueError(
                f"{split} has rows of one group in both parts (row {row} is of such a group). Give "
                "a splitter that keeps groups together, such as StratifiedGroupKFold(5)."
            )
        learn |= lone
        missing = np.setdiff1d(labels, labels[learn])
        if len(missing):
            raise ValueError(
                f"{split} learns from no row of {listed(missing.tolist())}. Give each training "
                "part rows of all classes, as cv=StratifiedKFold(5, shuffle=True) does."
            )
        held_out = held_out[~lone[held_out]]
        if len(held_out) or len(pairs) == 1:
            folds.append((np.flatnonzero(learn), held_out))
    if len(pairs) > 1:
        _check_each_once(np.where(lone, 1, n_held), named)
    return folds


def _latest(labels: np.ndarray, groups: np.ndarray | None) -> Fold:
    """Hold out the last fifth of the rows, except rows of classes without earlier rows.

    With few rows up to half, to reach 20 rows and one per class. Rows of groups with other
    training rows are not held out either.
    """
    n_rows = len(labels)
    enough = min(max(FEWEST_HELD_OUT, len(np.unique(labels))), n_rows // 2)
    later = np.arange(n_rows) >= n_rows - max(math.ceil(_LATEST_SHARE * n_rows), enough)
    held_out = later & np.isin(labels, labels[~later])
    if groups is not None:
        held_out &= ~np.isin(groups, groups[~held_out])
    if len(np.unique(labels[held_out])) < min(2, len(np.unique(labels))):
        also = "" if groups is None else " of groups that no earlier row is of"
        raise ValueError(
            f'cv="latest" holds out the last {int(later.sum())} of {n_rows} rows, and '
            f"among those{also} are rows of fewer than 2 known classes. Give more rows, or hold "
            "random ones out: cv=0.2."
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _pairs(
    cv: Any, named: str, rows: Any, labels: np.ndarray, groups: np.ndarray | None
) -> list[Any]:
    """Return the splits of `cv`, at most one more than allowed."""
    if isinstance(cv, Iterator):
        raise ValueError(f"{named} is used up by one fit. Give a list: cv=list(...).")
    try:
        of_groups = () if groups is None else (groups,)
        splits = cv.split(rows, labels, *of_groups) if hasattr(cv, "split") else cv
        return list(islice(splits, MOST_FOLDS + 1))
    except (TypeError, ValueError) as error:
        if "groups" in str(error) and groups is None:
            raise ValueError(
                f"{named} needs to know the groups of the rows: give them to fit(groups=...)."
            ) from error
        raise ValueError(f"{named} cannot split {len(labels)} rows: {error}") from error


def _parts(pair: Any, split: str, n_rows: int) -> Sequence[np.ndarray]:
    """Row positions of both parts of a split, int64, ascending."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise ValueError(
            f"{split} is not a pair of row positions. Give cv as a splitter of "
            "sklearn.model_selection, or as a list of (train, test)."
        )
    parts = []
    for name, part in zip(("training", "test"), pair, strict=True):
        positions = np.asarray(part)
        if not positions.size:
            raise ValueError(f"{split} has an empty {name} part. Give every part some rows.")
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise ValueError(
                f"{split} has a {name} part that is no list of row positions (whole numbers), but "
                f"{positions.dtype} of shape {positions.shape}."
            )
        least, most = positions.min(), positions.max()
        if least < 0 or most >= n_rows:
            raise ValueError(
                f"{split} holds row {least if least < 0 else most} in its {name} part, and there "
                f"are {n_rows} rows. Give positions from 0 to {n_rows - 1}."
            )
        positions, counts = np.unique(positions, return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"{split} has row {positions[counts.argmax()]} twice in its {name} part. Give each "
                "row once; sample_weight weighs rows."
            )
        parts.append(positions.astype(np.int64))
    return parts


def _check_each_once(n_held: np.ndarray, named: str) -> None:
    """Raise ValueError if several splits hold out a row more than once, or never."""
    several, never = np.flatnonzero(n_held > 1), np.flatnonzero(n_held == 0)
    if len(several) or len(never):
        what = "several splits hold" if len(several) else "no split holds"
        rows = several if len(several) else never
        raise ValueError(
            f"{named}: {what} out row {rows[0]} ({len(rows)} such rows of {len(n_held)}). Several "
            "splits must hold each row out once, as KFold does; to hold rows out once, give a "
            "single split, such as ShuffleSplit(1), or a share: cv=0.1."
        )
