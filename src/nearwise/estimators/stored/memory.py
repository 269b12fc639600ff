"""Memory in a store: the rows for a query or a change are fetched into a bank."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from nearwise.estimators.inputs.labels import label_list
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.model.log_linear_pool import with_new_classes
from nearwise.estimators.model.memory_views import OPINION, MemoryViews, SpaceSpec
from nearwise.estimators.storage.model_schema import Count, Finite, Part, Positive, Share, Size
from nearwise.estimators.stored.row_codec import RowCodec
from nearwise.estimators.uncertainty.calibration_rows import CalibrationRows
from nearwise.functional import DEFAULT_MEMORY_BUDGET, Neighbors, topk_neighbors
from nearwise.functional.search_cpu import measure_candidates
from nearwise.memory import Change, MemoryBank, StoreError
from nearwise.memory.stores import Edit, RowReader, RowStore, StoredRows
from nearwise.memory.stores.protocol import refuse_unknown
from nearwise.memory.ties import tie_order, tie_ranks
from nearwise.nn.neighbor_set import OWN_NEIGHBORS, KnownRows, SpaceSummary, from_zero, log_shares

_DRAWN_FROM = 100  # nearest rows for the draw of an id
_AT_ONCE = 4_096  # rows per block of neighbor searches
_NEW_CLASS = 4  # weight of the mean reliability for a class added later, in rows
_NO_IDS = np.empty(0, np.int64)


def distance_column(spec: SpaceSpec) -> str:
    """Name of the column with each row's mean distance to its nearest rows."""
    return f"own_distance.{spec.name}"


class FactColumn(Part):
    """Column of the bank, stored as numbers of each row."""

    name: str
    shape: list[Count]
    dtype: Literal["float32", "float64", "int64", "bool"]

    @property
    def width(self) -> int:
        """Number of stored values per row."""
        return int(np.prod(self.shape))


class SpaceFacts(Part):
    """Statistics of a key space when the memory was moved.

    `unit`, `votes` and `own_opinion` are as in `SpaceSummary`; `usual` is the mean reliability.
    """

    unit: Positive
    votes: Annotated[list[Finite], Field(min_length=6, max_length=6)]
    own_opinion: Finite | None
    usual: Share


class Layout(NamedTuple):
    """Layout of rows in the store, with statistics of the memory.

    Attributes
    ----------
    columns : list of FactColumn
        Columns in the order of a row's facts.
    spaces : dict of str to SpaceFacts
    calibration : dict of int to CalibrationRows
        Calibration rows by number of views.
    """

    columns: list[FactColumn]
    spaces: dict[str, SpaceFacts]
    calibration: dict[int, CalibrationRows]

    def facts(self, columns: Mapping[str, Tensor], n_rows: int) -> np.ndarray:
        """Concatenate columns, float32 (n_rows, n_facts); missing values are 0."""
        nothing, parts = torch.zeros(n_rows, 0), []
        for column in self.columns:
            part = columns.get(column.name, nothing).float().reshape(n_rows, -1)
            parts.append(F.pad(part, (0, column.width - part.shape[1])))
        result: np.ndarray = torch.cat(parts, dim=1).numpy()
        return result

    def read(self, facts: np.ndarray) -> dict[str, Tensor]:
        """Columns from the result of `facts`."""
        found, start = {}, 0
        for column in self.columns:
            part = torch.from_numpy(facts[:, start : start + column.width])
            dtype = getattr(torch, column.dtype)
            found[column.name] = part.reshape(-1, *column.shape).to(dtype)
            start += column.width
        return found


class MemorySummary(Part):
    """Statistics of the memory, updated by every change.

    `classes` are labels as plain data, `counts` the total weight of each class's rows,
    `row_schemas` the schemas of `RowCodec`.
    """

    classes: list[Any]
    counts: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    rows_per_class: list[Count]
    n_rows: Size
    next_id: Count
    row_schemas: list[str]

    @classmethod
    def of(cls, reader: RowReader) -> Self:
        """Read the summary of a version; StoreError if it is invalid."""
        try:
            found = cls.model_validate(reader.summary)
            if not len(found.classes) == len(found.counts) == len(found.rows_per_class):
                raise ValueError("weights or rows of other classes")
        except ValueError as error:
            raise StoreError(
                "invalid",
                f"The store holds a summary that nearwise never writes: {error}. Restore it from "
                "a copy.",
            ) from error
        return found

    def counted(self, given: Tensor, taken: Tensor, weights: Tensor, sign: int) -> Self:
        """Add (`sign` 1) or subtract (-1) rows, by given labels and estimated true labels."""
        n_classes = len(self.counts)
        weighed = torch.bincount(taken, weights, n_classes).numpy()  # as in a memory in the process
        counts = np.array(self.counts) + sign * weighed
        n_given = torch.bincount(given, minlength=n_classes).numpy()
        per_class = np.array(self.rows_per_class) + sign * n_given
        update = {
            "counts": np.maximum(counts, 0.0).tolist(),
            "rows_per_class": per_class.tolist(),
            "n_rows": self.n_rows + sign * len(given),
        }
        return self.model_copy(update=update)


class StoredMemory(MemoryViews):
    """Memory that searches a store.

    The memory of a published model is one version, without a bank. A fork has a bank with fetched
    rows and with the rows of a change. The change reaches the store only by `edit`, but queries of
    the fork include it.
    """

    holds_all = False
    store: RowStore
    reader: RowReader
    layout: Layout
    summary: MemorySummary
    put: StoredRows  # rows that the change adds or relabels
    removed: np.ndarray  # ids that the change removes, int64
    _bank: MemoryBank | None
    _empty: MemoryBank  # initial bank of a fork
    _new: Tensor  # bank positions of rows not in the store yet, searched separately

    @classmethod
    def over(cls, views: MemoryViews, store: RowStore, reader: RowReader, layout: Layout) -> Self:
        """Make the memory of a model that searches a store instead of `views`."""
        made, bank = object.__new__(cls), views.bank
        made.__dict__ |= {name: part for name, part in vars(views).items() if name != "bank"}
        made.store, made.layout, made._states = store, layout, {}
        made._empty = bank.fork()
        made._empty.remove(bank.ids)
        made._empty.keys = {spec.name: made._empty.keys[spec.name] for spec in made.specs}
        n_facts = sum(column.width for column in layout.columns)
        made._empty.columns = layout.read(np.empty((0, n_facts), np.float32))
        return made.at(reader)

    def at(self, reader: RowReader) -> Self:
        """Memory at another version of the store."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__ | {"reader": reader, "summary": MemorySummary.of(reader)}
        made.put, made.removed, made._bank = self.store.schema.no_rows(), _NO_IDS, None
        made.forget()
        return made

    def fork(self) -> Self:
        """Copy without fetched rows, for a query or a change."""
        fork = object.__new__(type(self))
        fork.__dict__ |= self.__dict__
        fork.specs = list(self.specs)
        fork.release()
        return fork

    for_query = fork

    def holding(self, ids: Any) -> Self:
        """Memory with the rows of these ids fetched, and no others."""
        fork = self.fork()
        fork.hold(ids)
        return fork

    @property
    def bank(self) -> MemoryBank:
        """Bank of the fetched rows; ValueError for a model that is not a fork."""
        if self._bank is None:
            self.require_all("This needs all remembered rows, which")
        assert self._bank is not None  # require_all raises
        return self._bank

    @bank.setter
    def bank(self, bank: MemoryBank) -> None:
        self._bank = bank

    def require_all(self, what: str) -> NoReturn:
        """Raise ValueError, as an operation (named by `what`) needs the whole memory."""
        raise ValueError(
            f"{what} are in a store and not in this process. Use a model that holds its memory, "
            "before 'nearwise move'."
        )

    def check_changeable(self) -> NoReturn:
        """Raise ValueError for changes that would not reach the store."""
        raise ValueError(
            "The memory of this model is in a store, whose changes are to survive. Make them by "
            "the add, remove and relabel of nearwise.LiveModel(FOLDER), or by the commands of "
            "these names."
        )

    def check_addable(self, fresh: list[Any], capacity: int | None, *, has_base: bool) -> None:
        """Raise ValueError for additions that would need a pass over the whole memory."""
        if capacity is not None:
            raise ValueError(
                f"capacity={capacity} was given, and a memory in a store does not forget rows by "
                "itself. Leave it out, and remove rows."
            )
        if fresh and has_base:
            raise ValueError(
                f"Rows of the new classes {fresh[:5]} cannot be added to a memory in a store "
                "whose model has a base: what the base predicts for them depends on the whole "
                "memory. Add them to the model before 'nearwise move', or fit with estimator=None."
            )

    # --- fetched rows ---------------------------------------------------------------------------

    @property
    def _n_classes(self) -> int:
        return len(self.summary.counts)

    def release(self) -> None:
        """Release fetched rows, except rows that are not in the store yet."""
        self.bank = self._empty.fork()
        self.bank.n_classes = self._n_classes
        self._indexes, self._sealed, self._own = {}, {}, {}
        new = self.put.take(self.put.ids >= self.reader.summary["next_id"])
        if len(new):
            self._take_in(new)
        else:
            self.forget()
        self._new = torch.from_numpy(tie_order(new.ids))

    def forget(self) -> None:
        """Clear all derived values except the calibration rows."""
        self.derived = {
            ("calibration rows", self._n_classes, n_views): _with_classes(rows, self._n_classes)
            for n_views, rows in self.layout.calibration.items()
        }

    forget_labels = forget

    def hold(self, ids: Any) -> Tensor:
        """Fetch missing rows, and return the bank positions of all, (n,)."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        missing = np.setdiff1d(wanted, self.bank.ids.numpy())
        if len(missing):
            self._take_in(self._rows(missing))
        return self.bank.positions(torch.from_numpy(wanted))

    def _rows(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Rows by their distinct ids, including the change."""
        refuse_unknown(ids, ~np.isin(ids, self.removed))
        pending = np.isin(ids, self.put.ids)
        if not pending.any():
            return self.reader.fetch(ids, rows=rows)
        put = self.put if rows else replace(self.put, rows=None)
        parts = [put.by_id(ids[pending]), self.reader.fetch(ids[~pending], rows=rows)]
        return StoredRows.joined(parts).by_id(ids)

    def _take_in(self, rows: StoredRows) -> None:
        self.bank.add(
            {name: torch.from_numpy(keys) for name, keys in rows.keys.items()},
            torch.from_numpy(rows.labels),
            torch.from_numpy(rows.ids),
            torch.from_numpy(rows.weights),
            columns=self.layout.read(rows.facts),
        )
        self.forget()

    def given(self, positions: Any) -> tuple[Any, np.ndarray | None] | None:
        """Original rows at positions, and their files."""
        ids = self.bank.ids[positions].numpy()
        packed = self._rows(ids, rows=True).rows
        return RowCodec(self.summary.row_schemas).unpack(packed) if packed else None

    # --- input of the heads ---------------------------------------------------------------------

    def search(
        self, spec: SpaceSpec, query: Tensor, k: int, query_ids: Tensor | None = None
    ) -> Neighbors:
        """Nearest rows: exact distances in the space's unit, and bank positions."""
        exclude = None if query_ids is None else query_ids.numpy()
        numbers = np.ascontiguousarray(query.float().numpy())
        ids = self.reader.search(spec.name, numbers, k + len(self.removed), exclude)
        there = (ids >= 0) & ~np.isin(ids, self.removed)
        distinct, back = np.unique(ids[there], return_inverse=True)
        positions = torch.full(ids.shape, -1)
        positions[torch.from_numpy(there)] = self.hold(distinct)[torch.from_numpy(back)]
        keys = self.bank.keys[spec.name]
        if len(self._new):
            wanted = min(k + 1, len(self._new))
            near = topk_neighbors(query, keys[self._new], wanted, metric=spec.metric)
            new = self._new[near.indices]
            if query_ids is not None:
                new[self.bank.ids[new] == query_ids[:, None]] = -1
            positions = torch.cat([positions, new], dim=1)
        if positions.shape[1] == 0 or bool((positions < 0).all(1).any()):
            raise ValueError("The memory holds no rows that may be found. Add rows first.")
        at = positions.numpy()
        distances = measure_candidates(query, keys, at.clip(0), spec.metric, DEFAULT_MEMORY_BUDGET)
        distances[at < 0] = np.inf
        ranks = tie_ranks(self.bank.ids.numpy())
        order = np.lexsort((ranks[at.clip(0)], distances), axis=1)
        best = order[:, : min(k, int((at >= 0).sum(1).min()))]
        near_by, where = (np.take_along_axis(part, best, 1) for part in (distances, at))
        return Neighbors(torch.from_numpy(near_by) / spec.unit, torch.from_numpy(where))

    @property
    def n_findable(self) -> int:
        """Number of searchable rows, fetched or not."""
        return sum(self.summary.rows_per_class)

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows; in a store all of them are searchable."""
        return self.n_findable

    @property
    def next_id(self) -> int:
        """Id of the next row."""
        return self.summary.next_id

    def rows_per_class(self, *, findable: bool = False) -> Tensor:
        """Count the rows of each class, (C,)."""
        return torch.tensor(self.summary.rows_per_class)

    def class_shares(self) -> Tensor:
        """Weighted class shares of the whole memory, (C,)."""
        return log_shares(torch.tensor(self.summary.counts)).exp()

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row among the nearest to a random key."""
        space = self.specs[0].name
        width = self.store.schema.spaces[space].width
        somewhere = rng.normal(size=(1, width)).astype(np.float32)
        found = self.reader.search(space, somewhere, _DRAWN_FROM)
        return int(rng.choice(found[found >= 0]))

    def space(self, spec: SpaceSpec) -> Any:
        """Rows of a space that are fetched, with the statistics of the memory."""
        columns, facts = self.bank.columns, self.layout.spaces[spec.name]
        own, opinion = columns[distance_column(spec)], columns.get(OPINION)
        rows = KnownRows(self.labels, own, columns[spec.reliability], opinion)
        summary = SpaceSummary(
            self.summary.n_rows,
            self.n_columns,
            log_shares(torch.tensor(self.summary.counts)),
            torch.tensor(facts.votes),
            facts.unit,
            facts.own_opinion,
            spec.name == "supervised",
            spec.metric,
        )
        return _Described(rows, summary)

    # --- changes --------------------------------------------------------------------------------

    def add_rows(
        self,
        keys: dict[str, Tensor],
        columns: dict[str, Tensor],
        labels: Tensor,
        sample_weight: Tensor | None,
        n_classes: int,
    ) -> Tensor:
        """Add rows and return their ids."""
        n_rows, first = len(labels), self.summary.next_id
        more = [0] * (n_classes - self._n_classes)
        update: dict[str, Any] = {"next_id": first + n_rows}
        update |= {n: getattr(self.summary, n) + more for n in ("counts", "rows_per_class")}
        self.summary = self.summary.model_copy(update=update)
        weights = torch.ones(n_rows) if sample_weight is None else sample_weight.float()
        rows = StoredRows(
            np.arange(first, first + n_rows),
            labels.numpy().astype(np.int64),
            weights.numpy(),
            {name: part.float().numpy() for name, part in keys.items()},
            self.layout.facts(columns, n_rows),
            [b""] * n_rows,  # until `keep_given`
        )
        opinion = columns.get(OPINION)
        self._judge(rows, None if opinion is None else opinion.shape[1])
        self._count(rows.ids, 1)
        return torch.from_numpy(rows.ids)

    def keep_given(self, rows: Any, names: np.ndarray | None) -> bool:
        """Store the original rows of an addition."""
        codec = RowCodec(self.summary.row_schemas)
        self.put = replace(self.put, rows=codec.pack(rows, names))
        self.summary = self.summary.model_copy(update={"row_schemas": codec.schemas})
        return True

    def remove_rows(self, ids: Any) -> None:
        """Remove rows."""
        gone = np.unique(np.asarray(ids, dtype=np.int64))
        self._count(gone, -1)
        self.removed = np.union1d(self.removed, gone)
        self.put = self.put.take(~np.isin(self.put.ids, gone))
        self.release()

    def relabel_rows(self, ids: Any, labels: Tensor) -> None:
        """Relabel rows."""
        changed, before = np.asarray(ids, dtype=np.int64), self.summary
        self._count(changed, -1)
        self.bank.relabel(ids, labels)  # checks the labels
        if not len(changed):
            return
        without, self.summary = self.summary, before
        self._judge(replace(self._rows(changed, rows=True), labels=labels.numpy()), None)
        self.summary = without
        self._count(changed, 1)

    def edit(self, change: Change, classes: np.ndarray) -> Edit:
        """Edit that writes the change to the store."""
        summary = self.summary.model_copy(update={"classes": label_list(classes)})
        return Edit(change, summary.model_dump(), self.put, self.removed)

    def _count(self, ids: np.ndarray, sign: int) -> None:
        """Add rows to the summary (`sign` 1), or subtract them (-1)."""
        at = self.hold(ids)
        weights, certainty = self.bank.sample_weight, self.remembered_labels.certainty
        weights = weights if certainty is None else weights * certainty
        self.summary = self.summary.counted(
            self.bank.labels[at], self.labels[at], weights[at], sign
        )

    def _judge(self, rows: StoredRows, n_based: int | None) -> None:
        """Add rows to the change, with columns computed from their neighbors.

        OPINION covers the first `n_based` classes; neighbors vote on the others. None: OPINION is
        missing, or covers all classes.
        """
        others = self.put.take(~np.isin(self.put.ids, rows.ids))
        self.put = StoredRows.joined([others, rows])
        facts = []
        for start in range(0, len(rows), _AT_ONCE):
            self.release()
            at = self.hold(rows.ids[start : start + _AT_ONCE])
            judged = self._by_neighbors(at, n_based)
            kept = {name: column[at] for name, column in self.bank.columns.items()}
            facts.append(self.layout.facts(kept | judged, len(at)))
        self.put = StoredRows.joined([others, replace(rows, facts=np.concatenate(facts))])
        self.release()

    def _by_neighbors(self, positions: Tensor, n_based: int | None) -> dict[str, Tensor]:
        """Columns of rows at bank positions, computed from their neighbors."""
        columns = dict[str, Tensor]()
        k = min(OWN_NEIGHBORS, max(1, self.summary.n_rows - 1))
        for spec in self.specs:
            keys, ids = self.bank.keys[spec.name][positions], self.bank.ids[positions]
            near = self.search(spec, keys, k, ids)
            n_judging = max(1, near.indices.shape[1] - 1)  # the last replaces a left-out neighbor
            labels = self.labels
            agree = labels[near.indices[:, :n_judging]] == labels[positions][:, None]
            columns[spec.reliability] = torch.where(
                labels[positions] < len(self.reader.summary["counts"]),
                agree.float().mean(1),
                self._of_new_class(spec, positions, agree),
            )
            apart = from_zero(near.distances, spec.metric)
            columns[distance_column(spec)] = apart[:, :n_judging].mean(1)
            if spec is self.specs[0] and n_based is not None:
                opinion = self.bank.columns[OPINION][positions]
                near_labels, n_classes = labels[near.indices], opinion.shape[1]
                if n_based < n_classes:
                    known = opinion[:, :n_based]
                    opinion = with_new_classes(known, near.distances, near_labels, n_classes)
                columns[OPINION] = opinion
        return columns

    def _of_new_class(self, spec: SpaceSpec, positions: Tensor, agree: Tensor) -> Tensor:
        """Reliability of rows of a class added later, shrunk towards the mean."""
        labels = self.labels[positions]
        others = torch.tensor(self.summary.rows_per_class, dtype=torch.float32)
        others = (others + torch.bincount(labels, minlength=len(others)))[labels] - 1
        n_voting = others.clamp(0, agree.shape[1])
        usual = self.layout.spaces[spec.name].usual
        return (agree.float().sum(1) + _NEW_CLASS * usual) / (n_voting + _NEW_CLASS)


class _Described(NamedTuple):
    rows: KnownRows
    summary: SpaceSummary

    def describe(
        self, found: Neighbors, base: Tensor | None, left_out: None, log_weight: Tensor
    ) -> Any:
        assert left_out is None  # queries of remembered rows raise before
        return self.rows.describe(found, self.summary, base, log_weight)


def _with_classes(rows: CalibrationRows, n_classes: int) -> CalibrationRows:
    """Extend calibration rows by columns of zeros for classes added later."""

    def wider(values: np.ndarray) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, n_classes - values.shape[1])))

    parts = type(rows.parts)(*(wider(part) if part.ndim == 2 else part for part in rows.parts))
    return rows._replace(parts=parts, truth=wider(rows.truth))


def stored(model: FittedClassifier) -> StoredMemory:
    """Memory of a model with its memory in a store."""
    memory: Any = model.predictor.views  # guaranteed by the caller
    return memory


def at_version(model: FittedClassifier, reader: RowReader) -> FittedClassifier:
    """Model with another version of its memory, including its classes."""
    memory = stored(model).at(reader)
    predictor = replace(model.predictor, views=memory, prior=memory.class_shares())
    classes, found = model.classes, memory.summary.classes
    known = np.array(found[: len(classes)], dtype=classes.dtype)
    fresh = found[len(known) :]
    if fresh:
        dtype = np.result_type(known, np.asarray(fresh))
        known = np.concatenate([known, np.array(fresh, dtype=dtype)])
    return replace(model, predictor=predictor, classes=known)
