"""FittedModel: the complete state of a fitted estimator, as one immutable value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import pandas as pd
from torch import Tensor

from nearwise.data.tables.numeric_columns import Written
from nearwise.estimators.inputs.columns import ColumnReport
from nearwise.estimators.inputs.labels import check_labels, label_values
from nearwise.estimators.inputs.rows import AnyRows, KnownColumns, Rows
from nearwise.estimators.inputs.shared_work import once
from nearwise.estimators.inputs.targets import bounds_of, check_targets
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.memory_views import GROUPED, Forgetting, MemoryViews
from nearwise.estimators.model.number_memory import TARGET
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.model.predictor import Predictor
from nearwise.memory import MemoryBank
from nearwise.names import listed


@dataclass(frozen=True)
class StreamState:
    """State of a stream; ids count the rows that arrived.

    `seed` is the random state of evictions. At the last refresh, or the fit, `refreshed_at` rows
    had arrived and `refreshed_size` were remembered; `first` arrived in the first fit.
    `declared`: `partial_fit` got all classes. `half_life`: rows after which a vote counts half;
    None: votes do not fade. `changed` counts the rows added, removed or relabelled since the model
    was last recalibrated.
    """

    seed: int
    refreshed_at: int
    refreshed_size: int
    first: int
    declared: bool = False
    half_life: float | None = None
    changed: int = 0


class FolderState(NamedTuple):
    """State of a model folder in memory: its generation, lineage and last change.

    `saved` is the last change in the saved model itself; later changes are in the journal.
    `fitted_anew`: the model was fitted since, and no longer belongs to the lineage.
    """

    generation: str
    lineage: str
    version: int
    saved: int
    fitted_anew: bool = False


class FitReport(NamedTuple):
    """Choices and measurements of a fit, or of a later recalibration.

    Attributes
    ----------
    columns : dict of str to str
        Use of each training column: "number", "category", "date" or "left out".
    column_report : list of ColumnReport
        Per training column: type, gaps, distinct values, its use and why. Empty for images.
    written : Written
        Number format of the training table, for `read_table(like=model)`.
    choice : dict
        Choices, with the out-of-fold NLL behind each.
    history : list of dict
        Training curves: stage, member (fold, network), epoch, train_loss, ...
    oof_nll : float
        Out-of-fold NLL of training rows, in nats.
    temperature : float
        Temperature of the predictions.
    calibration_source : str
        Data that the calibration was fitted on.
    """

    columns: dict[str, str]
    column_report: list[ColumnReport]
    written: Written
    choice: dict[str, Any]
    history: list[dict[str, Any]]
    oof_nll: float
    temperature: float
    calibration_source: str

    def __repr__(self) -> str:
        return _short(self)

    @classmethod
    def of(cls, predictor: ClassPredictor) -> Self:
        """Report of a fitted predictor."""
        accepted = predictor.acceptance
        return cls(
            **_of_every_fit(predictor),
            oof_nll=accepted.nll,
            temperature=accepted.temperature,
            calibration_source=accepted.source,
        )


class RememberedRow(NamedTuple):
    """A remembered row: its id, label as given, weight as given, and column name to value.

    `show` is what is shown with the row, or None; of an image from a file its name.
    """

    id: int
    label: Any
    weight: float
    row: dict[str, Any]
    show: str | None = None


@dataclass(frozen=True, eq=False)
class FittedModel:
    """One version of a fitted estimator.

    A published model never changes, so any number of threads may predict with it. A change edits
    a `fork` and publishes it by one assignment; running predictions keep their version.

    Attributes
    ----------
    predictor : Predictor
        Encoder, base, heads, calibration and memory.
    columns : KnownColumns
        Columns of the training rows.
    rows : DataFrame or ndarray
        The remembered rows as they were given, in the order of the memory.
    row_names : ndarray of str of shape (n_remembered,), or None
        What is shown with every remembered row (`show` of `fit`); of images their files. "" for a
        row without.
    weight_unit : float
        Mean sample weight in `fit`; later weights are divided by it.
    target_name : str
    group_name : str or None
        Column of the groups, "" if it had no name; None if the fit had no groups.
    fitted_at : str or None
        When the fit ended, in UTC as ISO 8601; None in folders of older versions.
    stream : StreamState
    evicted : int64 ndarray of shape (n_evicted,)
        Ids that the last change evicted because of the capacity.
    folders : dict of str to FolderState
        State of the folders that the model was read from or written to, by real path. Shared by
        all versions of an estimator; the one mutable part.
    """

    predictor: Predictor
    columns: KnownColumns
    rows: Any
    row_names: np.ndarray | None
    weight_unit: float
    target_name: str
    stream: StreamState
    evicted: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    folders: dict[str, FolderState] = field(default_factory=dict)
    group_name: str | None = None
    fitted_at: str | None = None

    @property
    def holds_memory(self) -> bool:
        """Whether all remembered rows are in this process, not in a store."""
        return self.predictor.views.holds_all

    @property
    def bank(self) -> MemoryBank:
        """The remembered rows: keys of every space, labels, ids, sample weights."""
        return self.predictor.views.bank

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows."""
        return self.predictor.views.n_remembered

    @property
    def next_id(self) -> int:
        """Id of the next row."""
        return self.predictor.views.next_id

    def given(self, positions: Any) -> tuple[Any, np.ndarray | None]:
        """Original remembered rows at bank positions, and what is shown with them."""
        fetched = self.predictor.views.given(positions)
        if fetched is not None:
            return fetched
        names = None if self.row_names is None else self.row_names[positions]
        is_table = isinstance(self.rows, pd.DataFrame)
        return self.rows.iloc[positions] if is_table else self.rows[positions], names

    def rows_at(self, positions: Any) -> Any:
        """Original remembered rows at bank positions."""
        return self.given(positions)[0]

    def fork(self) -> Self:
        """Shallow copy for copy-on-write changes."""
        return replace(self, predictor=self.predictor.fork())

    def without_groups(self) -> Self:
        """Copy without groups: leave-one-out then leaves out the row alone, not its group."""
        fork = self.fork()
        for name in GROUPED:
            if fork.bank.columns.pop(name, None) is not None:
                fork.predictor.views.forget_labels()
        return fork

    def fading(self) -> Self:
        """Set the half-life of votes from the stream state, in an unpublished fork."""
        half_life, first = self.stream.half_life, self.stream.first
        self.predictor.views.forgetting = (
            None if half_life is None else Forgetting(half_life, first)
        )
        return self

    def encoded(self, X: Any, views: Sequence[Any] | None = None) -> list[AnyRows]:
        """Check and encode new rows in all views: the given ones, or the views of `fit`."""
        encoder, tta = self.predictor.encoder, self.predictor.tta if views is None else None

        def encode() -> list[AnyRows]:
            return Rows.given(X, self.columns, encoder, views).encode(tta)

        return once(f"encoded, {tta}", (X, encoder, views), encode)

    def for_query(self, *, remembered: bool) -> Self:
        """Model for a query; ValueError for remembered rows if the memory is in a store."""
        if remembered:
            self.predictor.views.require_all("The remembered rows")
        return self._with(self.predictor.views.for_query())

    def holding(self, ids: Any) -> Self:
        """Model with the rows of these ids loaded; UnknownIdError if one is not remembered."""
        return self._with(self.predictor.views.holding(ids))

    def _with(self, views: MemoryViews) -> Self:
        if views is self.predictor.views:
            return self
        return replace(self, predictor=replace(self.predictor, views=views))

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row."""
        return self.predictor.views.draw_id(rng)

    def look_up(self, ids: Any) -> list[RememberedRow]:
        """Remembered rows by id; UnknownIdError if one is not remembered."""
        if not len(ids):
            return []
        held = self.holding(ids)
        positions = held.bank.positions(ids).tolist()
        weights = (held.bank.sample_weight[positions] * self.weight_unit).tolist()
        labels, rows = held.labels_at(positions).tolist(), held.remembered(positions)
        return list(map(RememberedRow, map(int, ids), labels, weights, *zip(*rows, strict=True)))

    def remembered(self, positions: list[int]) -> list[tuple[dict[str, Any], str | None]]:
        """Original rows at bank positions, as column name to value, and what is shown with each."""
        rows, names = self.given(positions)
        shown = [None] * len(positions) if names is None else [str(n) or None for n in names]
        return list(zip(self.predictor.encoder.described(rows, names), shown, strict=True))

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Given labels, or targets, of remembered rows (n,); of all rows by default."""
        raise NotImplementedError

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check labels, or targets, (n,); ValueError unless there is one per row."""
        raise NotImplementedError

    @property
    def label_positions(self) -> Tensor:
        """Class positions of the remembered rows, int64 (n_remembered,)."""
        held = self.bank.labels
        return held.argmax(1) if held.ndim == 2 else held

    @property
    def codes(self) -> np.ndarray:
        """Class positions of the remembered rows as an array, int64 (n_remembered,)."""
        return self.label_positions.numpy()

    @property
    def numbers(self) -> np.ndarray | None:
        """Targets of the remembered rows, float64 (n_remembered,); None for a classifier."""
        return None

    def settled(self) -> Self:
        """Recompute values that depend on all remembered rows, in an unpublished fork."""
        return self


@dataclass(frozen=True, eq=False)
class FittedClassifier(FittedModel):
    """One version of a fitted classifier.

    Attributes
    ----------
    predictor : ClassPredictor
    classes : ndarray of shape (n_classes,)
    """

    predictor: ClassPredictor
    classes: np.ndarray = field(kw_only=True)

    @property
    def rows_per_class(self) -> np.ndarray:
        """Number of remembered rows of each class, int64 (n_classes,)."""
        found: np.ndarray = self.predictor.views.rows_per_class().numpy()
        return found

    @property
    def n_classes(self) -> int:
        """Number of classes, including classes added after the fit."""
        return len(self.classes)

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Given labels of remembered rows (n,); of all rows by default."""
        found: np.ndarray = self.classes[self.label_positions[positions].numpy()]
        return found

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check labels (n,); with `n_rows`, that there is one per row."""
        if n_rows is not None:
            check_labels(y, n_rows)
        return label_values(y)

    def settled(self) -> Self:
        """Recompute the class shares."""
        shares = self.predictor.views.class_shares()
        return replace(self, predictor=replace(self.predictor, prior=shares))


@dataclass(frozen=True, eq=False)
class FittedRegressor(FittedModel):
    """One version of a fitted regressor.

    Attributes
    ----------
    predictor : NumberPredictor
    """

    predictor: NumberPredictor

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Targets of remembered rows, float64 (n,); of all rows by default."""
        found: np.ndarray = self.bank.columns[TARGET][positions].numpy()
        return found

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check targets; float64 (n,)."""
        return check_targets(y, n_rows)

    @property
    def numbers(self) -> np.ndarray:
        """Targets of the remembered rows, float64 (n_remembered,)."""
        return self.labels_at()

    def settled(self) -> Self:
        """Recompute the bounds of predictions from the targets."""
        lower, upper = bounds_of(self.numbers)
        return replace(self, predictor=replace(self.predictor, lower=lower, upper=upper))


class NumberReport(NamedTuple):
    """Choices and measurements of a regressor's fit.

    Attributes
    ----------
    columns, column_report, written, choice, history
        As in `FitReport`.
    left_out_crps : float
        Mean CRPS of left-out rows, in the unit of the target; NaN with calibration=None.
    spread : float
        Factor by which mixtures of new rows are widened.
    bounds : (float, float)
        Bounds of predictions; infinite if the targets suggest none.
    """

    columns: dict[str, str]
    column_report: list[ColumnReport]
    written: Written
    choice: dict[str, Any]
    history: list[dict[str, Any]]
    left_out_crps: float
    spread: float
    bounds: tuple[float, float]

    def __repr__(self) -> str:
        return _short(self)

    @classmethod
    def of(cls, predictor: NumberPredictor) -> Self:
        """Report of a fitted predictor."""
        return cls(
            **_of_every_fit(predictor),
            left_out_crps=predictor.spread.crps,
            spread=predictor.spread.factor,
            bounds=(predictor.lower, predictor.upper),
        )


def _of_every_fit(predictor: Predictor) -> dict[str, Any]:
    """Fields shared by both reports."""
    encoder = predictor.encoder
    return {
        "columns": dict(encoder.kinds),
        "column_report": [ColumnReport.from_json(report) for report in encoder.report],
        "written": encoder.written,
        "choice": predictor.choice,
        "history": predictor.history,
    }


def _short(report: Any) -> str:
    """One line for a report: numbers and texts in full, the size of everything longer."""
    shown = [
        f"{name}=<{len(value)} entries>" if isinstance(value, dict | list) else f"{name}={value!r}"
        for name, value in report._asdict().items()
        if name != "written"
    ]
    return f"{type(report).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False)
class FittedTargets:
    """Models of several targets, one per target, of the same rows with the same ids.

    Attributes
    ----------
    names : list of str
        Names of the targets.
    models : list of FittedModel
        One model per target.
    """

    names: list[str]
    models: list[FittedModel]
    folders: dict[str, FolderState] = field(default_factory=dict)

    @property
    def columns(self) -> Any:
        """Training columns, the same for all targets."""
        return self.models[0].columns

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows."""
        return self.models[0].n_remembered

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError that says where the models of the single targets are."""
        if name.startswith("_"):  # as in unpickling, before there are fields
            raise AttributeError(name)
        raise AttributeError(
            f"A model of {len(self.names)} targets ({listed(self.names)}) has no {name!r} of its "
            "own. Take the model of one target from model.estimators_, in the order of "
            "model.target_names_."
        )
