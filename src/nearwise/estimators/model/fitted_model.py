"""FittedModel: everything a fitted estimator predicts with, as one value that never changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from torch import Tensor

from nearwise.data.tables.numeric_columns import Written
from nearwise.estimators.inputs.columns import ColumnReport
from nearwise.estimators.inputs.labels import check_labels, label_values
from nearwise.estimators.inputs.rows import AnyRows, KnownColumns, Rows
from nearwise.estimators.inputs.targets import bounds_of, check_targets
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.memory_views import GROUPED, Forgetting, MemoryViews
from nearwise.estimators.model.number_memory import TARGET
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.model.predictor import Predictor
from nearwise.memory import MemoryBank


@dataclass(frozen=True)
class StreamState:
    """How far a stream has come; ids count the rows that arrived.

    `seed` decides which rows a full memory gives up. At the last refresh, or the fit,
    `refreshed_at` rows had arrived and `refreshed_size` were remembered; `first` came in the first
    fit. `declared`: `partial_fit` got all classes. `half_life`: rows after which a vote counts
    half; None where votes do not fade. `changed` counts the rows that came, went or got another
    label since the model was last judged again.
    """

    seed: int
    refreshed_at: int
    refreshed_size: int
    first: int
    declared: bool = False
    half_life: float | None = None
    changed: int = 0


class FolderState(NamedTuple):
    """What a model holds of a folder: its generation, its lineage and the last change.

    `saved` is the last change that the folder itself holds; those after it are in the journal.
    `fitted_anew`: the model was fitted since, and is no longer that of the lineage.
    """

    generation: str
    lineage: str
    version: int
    saved: int
    fitted_anew: bool = False


class FitReport(NamedTuple):
    """What a fit chose and measured; where the model was judged again since, what that found.

    Attributes
    ----------
    columns : dict of str to str
        What each training column is used as: "number", "category", "date" or "left out".
    column_report : list of ColumnReport
        Of each training column: type, gaps, distinct values, its use and why. Images have none.
    written : Written
        How the numbers of the training table were written, for `read_table(like=model)`.
    choice : dict
        What was chosen and the out-of-fold NLL behind it.
    history : list of dict
        Training curves: stage, member (fold, network), epoch, train_loss, ...
    oof_nll : float
        Out-of-fold NLL of training rows, in nats.
    temperature : float
        Of the predictions.
    calibration_source : str
        Where the calibration comes from.
    """

    columns: dict[str, str]
    column_report: list[ColumnReport]
    written: Written
    choice: dict[str, Any]
    history: list[dict[str, Any]]
    oof_nll: float
    temperature: float
    calibration_source: str

    @classmethod
    def of(cls, predictor: ClassPredictor) -> Self:
        """Report on a fitted predictor."""
        accepted = predictor.acceptance
        return cls(
            **_of_every_fit(predictor),
            oof_nll=accepted.nll,
            temperature=accepted.temperature,
            calibration_source=accepted.source,
        )


class RememberedRow(NamedTuple):
    """A remembered row: its id, label as given, weight as given, and column name to value."""

    id: int
    label: Any
    weight: float
    row: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FittedModel:
    """One version of a fitted estimator.

    A model that has been published is never changed, so any number of threads may predict with it.
    A change takes a `fork`, works on that, and publishes it with one assignment; readers go on with
    the version that they have.

    Attributes
    ----------
    predictor : Predictor
        Encoder, base, heads, calibration, and the memory as it is searched.
    columns : KnownColumns
        Of the training rows.
    rows : DataFrame or ndarray
        The remembered rows as they were given, in the order of the memory.
    row_names : ndarray of str of shape (n_remembered,), or None
        File of every remembered image.
    weight_unit : float
        Mean sample weight in `fit`; later weights are divided by it.
    target_name : str
    group_name : str or None
        Column of the groups, "" where it had no name; None of a fit that was not given groups.
    stream : StreamState
    evicted : int64 ndarray of shape (n_evicted,)
        Ids that the last change forgot for the capacity.
    folders : dict of str to FolderState
        What is held of the folders that it was read from or written to, by their real paths;
        shared by all versions of an estimator, and the one part that changes.
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

    @property
    def holds_memory(self) -> bool:
        """Whether all remembered rows are here, rather than in a store."""
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
        """Id that the next row gets."""
        return self.predictor.views.next_id

    def given(self, positions: Any) -> tuple[Any, np.ndarray | None]:
        """Remembered rows at bank positions as they were given, and their files."""
        fetched = self.predictor.views.given(positions)
        if fetched is not None:
            return fetched
        names = None if self.row_names is None else self.row_names[positions]
        is_table = isinstance(self.rows, pd.DataFrame)
        return self.rows.iloc[positions] if is_table else self.rows[positions], names

    def rows_at(self, positions: Any) -> Any:
        """Remembered rows at bank positions, as they were given."""
        return self.given(positions)[0]

    def fork(self) -> Self:
        """Copy the model for a change; what the change replaces is the copy's own."""
        return replace(self, predictor=self.predictor.fork())

    def without_groups(self) -> Self:
        """Give a model that knows no groups: a row is left out by itself alone."""
        fork = self.fork()
        for name in GROUPED:
            if fork.bank.columns.pop(name, None) is not None:
                fork.predictor.views.forget_labels()
        return fork

    def fading(self) -> Self:
        """Let votes fade as the stream's state says, in a fork that is not published yet."""
        half_life, first = self.stream.half_life, self.stream.first
        self.predictor.views.forgetting = (
            None if half_life is None else Forgetting(half_life, first)
        )
        return self

    def encoded(self, X: Any, views: Sequence[Any] | None = None) -> list[AnyRows]:
        """Check and encode new rows and their further views: those given, or such as `fit` made."""
        rows = Rows.given(X, self.columns, self.predictor.encoder, views)
        return rows.encode(self.predictor.tta if views is None else None)

    def for_query(self, *, remembered: bool) -> Self:
        """Give the model that a query uses, about remembered rows or others."""
        if remembered:
            self.predictor.views.require_all("The remembered rows")
        return self._with(self.predictor.views.for_query())

    def holding(self, ids: Any) -> Self:
        """Give a model that holds remembered rows; UnknownIdError if one is not remembered."""
        return self._with(self.predictor.views.holding(ids))

    def _with(self, views: MemoryViews) -> Self:
        if views is self.predictor.views:
            return self
        return replace(self, predictor=replace(self.predictor, views=views))

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row."""
        return self.predictor.views.draw_id(rng)

    def look_up(self, ids: Any) -> list[RememberedRow]:
        """Give remembered rows by id; UnknownIdError if one is not remembered."""
        if not len(ids):
            return []
        held = self.holding(ids)
        positions = held.bank.positions(ids).tolist()
        weights = (held.bank.sample_weight[positions] * self.weight_unit).tolist()
        labels, rows = held.labels_at(positions).tolist(), held.remembered(positions)
        return list(map(RememberedRow, map(int, ids), labels, weights, rows))

    def remembered(self, positions: list[int]) -> list[dict[str, Any]]:
        """Give the training rows at bank positions, column name to value."""
        return self.predictor.encoder.described(*self.given(positions))

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Labels, or targets, of remembered rows as they were given, all by default, (n,)."""
        raise NotImplementedError

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check given labels, or targets, (n,); ValueError if they are not one for each row."""
        raise NotImplementedError

    @property
    def label_positions(self) -> Tensor:
        """Class positions of the remembered rows, int64 (n_remembered,)."""
        held = self.bank.labels
        return held.argmax(1) if held.ndim == 2 else held

    @property
    def codes(self) -> np.ndarray:
        """The same as an array."""
        return self.label_positions.numpy()

    @property
    def numbers(self) -> np.ndarray | None:
        """Targets of the remembered rows where these are numbers, float64 (n_remembered,)."""
        return None

    def settled(self) -> Self:
        """Renew what depends on all remembered rows; of a fork that is not published yet."""
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
        """Number of classes, those that came after the fit included."""
        return len(self.classes)

    def labels_at(self, positions: Any = slice(None)) -> np.ndarray:
        """Labels as they were given of remembered rows, all by default, (n,)."""
        found: np.ndarray = self.classes[self.label_positions[positions].numpy()]
        return found

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check given labels, (n,): new rows' where there are `n_rows`."""
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
        """Targets of remembered rows, all by default, float64 (n,)."""
        found: np.ndarray = self.bank.columns[TARGET][positions].numpy()
        return found

    def checked(self, y: Any, n_rows: int | None = None) -> np.ndarray:
        """Check given targets, float64 (n,)."""
        return check_targets(y, n_rows)

    @property
    def numbers(self) -> np.ndarray:
        """Targets of the remembered rows, float64 (n_remembered,)."""
        return self.labels_at()

    def settled(self) -> Self:
        """Renew the bounds of what is predicted."""
        lower, upper = bounds_of(self.numbers)
        return replace(self, predictor=replace(self.predictor, lower=lower, upper=upper))


class NumberReport(NamedTuple):
    """What the fit of a regressor chose and measured.

    Attributes
    ----------
    columns, column_report, written, choice, history
        As in `FitReport`.
    left_out_crps : float
        Mean CRPS of left-out rows, in the unit of the target; NaN with calibration=None.
    spread : float
        Factor by which mixtures of new rows are widened.
    bounds : (float, float)
        Beyond which nothing is predicted; infinite where nothing speaks for a bound.
    """

    columns: dict[str, str]
    column_report: list[ColumnReport]
    written: Written
    choice: dict[str, Any]
    history: list[dict[str, Any]]
    left_out_crps: float
    spread: float
    bounds: tuple[float, float]

    @classmethod
    def of(cls, predictor: NumberPredictor) -> Self:
        """Report on a fitted predictor."""
        return cls(
            **_of_every_fit(predictor),
            left_out_crps=predictor.spread.crps,
            spread=predictor.spread.factor,
            bounds=(predictor.lower, predictor.upper),
        )


def _of_every_fit(predictor: Predictor) -> dict[str, Any]:
    """Fields that both reports have."""
    encoder = predictor.encoder
    return {
        "columns": dict(encoder.kinds),
        "column_report": [ColumnReport.from_json(report) for report in encoder.report],
        "written": encoder.written,
        "choice": predictor.choice,
        "history": predictor.history,
    }
