"""The memory of a query where the rows are in a store: those that it needs, fetched."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, NamedTuple, NoReturn, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.model.memory_views import OPINION, MemoryViews, SpaceSpec
from nearwise.classifier.model.predictor import Predictor
from nearwise.classifier.storage.model_schema import Count, Part, Size
from nearwise.classifier.stored.row_codec import RowCodec
from nearwise.classifier.uncertainty.calibration_rows import CalibrationRows
from nearwise.classifier.uncertainty.explain import Parts
from nearwise.functional import Neighbors, topk_neighbors
from nearwise.functional.search_cpu import measure_candidates
from nearwise.memory import MemoryBank, StoreError
from nearwise.memory.stores import RowReader, RowStore, StoredRows
from nearwise.memory.ties import tie_order, tie_ranks
from nearwise.nn.neighbor_set import KnownRows, SpaceSummary, log_shares

_DRAWN_FROM = 100  # rows


def distance_column(spec: SpaceSpec) -> str:
    """Name of the column with each row's mean distance to its own neighbors."""
    return f"own_distance.{spec.name}"


class Column(NamedTuple):
    """A column of the bank as numbers of a row in the store."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        """Numbers that a row has of it."""
        return int(np.prod(self.shape))


class SpaceFacts(NamedTuple):
    """What was known of a key space when the memory was moved.

    `unit`, `votes` and `own_opinion` are those of `SpaceSummary`; `usual` is the mean reliability.
    """

    unit: float
    votes: list[float]
    own_opinion: float | None
    usual: float


class Layout(NamedTuple):
    """How rows lie in the store, and what is known of the memory as a whole.

    Attributes
    ----------
    columns : list of Column
        In the order in which they stand in a row's facts.
    spaces : dict of str to SpaceFacts
    calibration : dict of int to CalibrationRows
        By the number of views.
    """

    columns: list[Column]
    spaces: dict[str, SpaceFacts]
    calibration: dict[int, CalibrationRows]

    def facts(self, columns: Mapping[str, Tensor]) -> np.ndarray:
        """Lay columns beside each other, float32 (n, n_facts)."""
        flat = [columns[c.name].float().reshape(-1, c.width) for c in self.columns]
        result: np.ndarray = torch.cat(flat, dim=1).numpy()
        return result

    def read(self, facts: np.ndarray) -> dict[str, Tensor]:
        """Give the columns that `facts` laid out."""
        found, start = {}, 0
        for column in self.columns:
            part = torch.from_numpy(facts[:, start : start + column.width])
            dtype = getattr(torch, column.dtype)
            found[column.name] = part.reshape(-1, *column.shape).to(dtype)
            start += column.width
        return found

    @property
    def n_facts(self) -> int:
        """Numbers of a row."""
        return sum(column.width for column in self.columns)


@dataclass(frozen=True)
class MemorySummary:
    """What is known of the memory as a whole after every change.

    Attributes
    ----------
    classes : list
        As JSON holds them.
    counts : list of float
        Weight of the remembered rows per class.
    rows_per_class : list of int
        Rows per class that may be found.
    n_rows, next_id : int
    row_schemas : list of str
        Of `RowCodec`.
    """

    classes: list[Any]
    counts: list[float]
    rows_per_class: list[int]
    n_rows: int
    next_id: int
    row_schemas: list[str]

    @classmethod
    def of(cls, reader: RowReader) -> "MemorySummary":
        """Read the summary of a version; StoreError if it is none."""
        try:
            found = _Summary.model_validate_json(json.dumps(reader.summary))
            if not len(found.classes) == len(found.counts) == len(found.rows_per_class):
                raise ValueError("weights or rows of other classes")
        except ValueError as error:
            raise StoreError(
                "invalid",
                f"The store holds a summary that nearwise never writes: {error}. Restore it from "
                "a copy.",
            ) from error
        return cls(**reader.summary)


class _Summary(Part):
    """Of `MemorySummary`, as JSON holds it."""

    classes: list[Any]
    counts: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    rows_per_class: list[Count]
    n_rows: Size
    next_id: Count
    row_schemas: list[str]


class StoredViews(MemoryViews):
    """Searches a store, and keeps what a query needs of it.

    A fork is empty and fetches what it needs; the views of a published model have no bank.
    """

    reader: RowReader
    layout: Layout
    summary: MemorySummary
    store: RowStore
    hidden: np.ndarray  # ids that are taken for removed, int64
    relabelled: dict[int, int]  # class positions that rows are given, by id
    _bank: MemoryBank | None
    _empty: MemoryBank  # what a fork begins with
    _new: Tensor  # bank positions of rows that are in no version yet, found beside the others

    @classmethod
    def over(cls, views: MemoryViews, **parts: Any) -> Self:
        """Replace the views of a model, with a store for its bank."""
        made = object.__new__(cls)
        bank = views.__dict__["bank"]
        made.__dict__ |= {k: v for k, v in views.__dict__.items() if k != "bank"} | parts
        made._states = {}  # the store searches
        made._empty = bank.fork()
        made._empty.remove(bank.ids)
        made._empty.keys = {spec.name: made._empty.keys[spec.name] for spec in made.specs}
        made._empty.columns = made.layout.read(np.empty((0, made.layout.n_facts), np.float32))
        made.hidden, made.relabelled = np.empty(0, np.int64), {}
        made._bank = None
        made.forget()
        return made

    @property
    def bank(self) -> MemoryBank:
        """The rows that were fetched; ValueError of a model that was not forked."""
        if self._bank is None:
            self.refuse("This needs all remembered rows, which")
        return self._bank

    @bank.setter
    def bank(self, bank: MemoryBank) -> None:
        self._bank = bank

    def refuse(self, what: str) -> NoReturn:
        """Raise the ValueError of what needs the whole memory in this process."""
        raise ValueError(
            f"{what} are in a store and not in this process. Use a model that holds its memory, "
            "before 'nearwise move'."
        )

    def fork(self) -> Self:
        """Copy with nothing fetched yet."""
        fork = object.__new__(type(self))
        fork.__dict__ |= self.__dict__
        fork.specs = list(self.specs)
        fork.empty()
        return fork

    def empty(self) -> None:
        """Let go of what was fetched."""
        self.bank = self._empty.fork()
        self.bank.n_classes = len(self.summary.classes)
        self._new = torch.empty(0, dtype=torch.int64)
        self._indexes, self._sealed, self._own = {}, {}, {}
        self._renew()

    def close(self) -> None:
        """Have no bank from now on, as the views of a published model."""
        self._bank = None

    def _renew(self) -> None:
        """Recompute what depends on the rows that are here."""
        n_classes = len(self.summary.classes)
        self.derived = {
            ("calibration rows", n_classes, n_views): with_classes(rows, n_classes)
            for n_views, rows in self.layout.calibration.items()
        }

    def forget(self) -> None:
        """Drop what was derived from the bank; call after it changed."""
        if self._bank is not None:
            self._renew()

    forget_labels = forget

    def hold(self, ids: np.ndarray) -> Tensor:
        """Fetch rows that are not here yet, and give the positions of all, (n,)."""
        held = self.bank.ids.numpy()
        missing = np.setdiff1d(ids, held)
        if len(missing):
            self.take_in(self.reader.fetch(missing))
        return self.bank.positions(torch.from_numpy(ids))

    def take_in(self, rows: StoredRows) -> None:
        """Put rows into the bank."""
        given = zip(rows.ids.tolist(), rows.labels.tolist(), strict=True)
        labels = [self.relabelled.get(row, label) for row, label in given]
        self.bank.add(
            {name: torch.from_numpy(keys) for name, keys in rows.keys.items()},
            torch.tensor(labels, dtype=torch.int64),
            torch.from_numpy(rows.ids),
            torch.from_numpy(rows.weights),
            columns=self.layout.read(rows.facts),
        )
        self._renew()

    def take_in_new(self, rows: StoredRows) -> None:
        """Put rows into the empty bank that are found beside those of the store."""
        self.bank.n_classes = max(self.bank.n_classes, int(rows.labels.max(initial=0)) + 1)
        self.take_in(rows)
        self._new = torch.from_numpy(tie_order(rows.ids))

    # --- what the heads need -----------------------------------------------------------------

    def search(
        self, spec: SpaceSpec, query: Tensor, k: int, query_ids: Tensor | None = None
    ) -> Neighbors:
        """Nearest rows: distances in the space's unit, measured here, and bank positions."""
        exclude = None if query_ids is None else query_ids.numpy()
        numbers = np.ascontiguousarray(query.float().numpy())
        ids = self.reader.search(spec.name, numbers, k + len(self.hidden), exclude)
        ids = np.where(np.isin(ids, self.hidden), -1, ids)
        there = ids >= 0
        positions = torch.full(ids.shape, -1)
        positions[torch.from_numpy(there)] = self._positions(ids[there])
        keys = self.bank.keys[spec.name]
        if len(self._new):
            positions = torch.cat([positions, self._among_new(spec, query, k, query_ids)], dim=1)
        if positions.shape[1] == 0 or bool((positions < 0).all(1).any()):
            raise ValueError("The memory holds no rows that may be found. Add rows first.")
        at = positions.numpy()
        distances = measure_candidates(query, keys, at.clip(0), spec.metric, self.memory_budget)
        distances[at < 0] = np.inf
        ranks = tie_ranks(self.bank.ids.numpy())
        order = np.lexsort((ranks[at.clip(0)], distances), axis=1)
        best = order[:, : min(k, int((at >= 0).sum(1).min()))]
        near, where = (np.take_along_axis(part, best, 1) for part in (distances, at))
        return Neighbors(torch.from_numpy(near) / spec.unit, torch.from_numpy(where))

    def _among_new(
        self, spec: SpaceSpec, query: Tensor, k: int, query_ids: Tensor | None
    ) -> Tensor:
        """Positions of the nearest rows that are in no version yet, -1 for a query itself."""
        keys, wanted = self.bank.keys[spec.name][self._new], min(k + 1, len(self._new))
        near = topk_neighbors(query, keys, wanted, metric=spec.metric)
        positions = self._new[near.indices]
        if query_ids is not None:
            positions[self.bank.ids[positions] == query_ids[:, None]] = -1
        return positions

    def _positions(self, ids: np.ndarray) -> Tensor:
        distinct, back = np.unique(ids, return_inverse=True)
        return self.hold(distinct)[torch.from_numpy(back)]

    @property
    def n_findable(self) -> int:
        """Number of rows that may be found, fetched or not."""
        return sum(self.summary.rows_per_class)

    def class_shares(self) -> Tensor:
        """Weighted class shares of the whole memory, (C,)."""
        return log_shares(torch.tensor(self.summary.counts)).exp()

    def retrieve_remembered(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse: remembered rows are predicted as a whole."""
        self.refuse("The remembered rows")

    def weighed(self, positions: Tensor) -> Tensor:
        """How much rows count as the class that they are taken to be of, (n,)."""
        weight, certainty = self.bank.sample_weight, self.remembered_labels.certainty
        return weight[positions] if certainty is None else (weight * certainty)[positions]

    def space(self, spec: SpaceSpec) -> Any:
        """Return what is known of the rows that were fetched."""
        columns, facts = self.bank.columns, self.layout.spaces[spec.name]
        rows = KnownRows(
            self.labels,
            columns[distance_column(spec)],
            columns[spec.reliability],
            columns.get(OPINION),
        )
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


class _Described(NamedTuple):
    rows: KnownRows
    summary: SpaceSummary

    def describe(
        self, found: Neighbors, base: Tensor | None, left_out: None, log_weight: Tensor
    ) -> Any:
        assert left_out is None  # remembered rows are refused before
        return self.rows.describe(found, self.summary, base, log_weight)


def with_classes(rows: CalibrationRows, n_classes: int) -> CalibrationRows:
    """Give calibration rows a column for classes that came later."""

    def wider(values: np.ndarray) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, n_classes - values.shape[1])))

    parts = Parts(*(wider(part) if part.ndim == 2 else part for part in rows.parts))
    return rows._replace(parts=parts, truth=wider(rows.truth))


@dataclass(frozen=True, eq=False)
class StoredFittedModel(FittedModel):
    """One version of a classifier whose memory is in a store.

    Its `rows` are no more than some of those remembered, to show what columns look like.
    """

    @property
    def _views(self) -> StoredViews:
        views = self.predictor.views
        assert isinstance(views, StoredViews)  # every constructor ensures it
        return views

    holds_memory = False

    def fetching(self) -> Self:
        """Copy that fetches what it needs; still empty."""
        return replace(self, predictor=self.predictor.fork())

    def fork(self) -> NoReturn:
        """Refuse: changes of the memory are the store's."""
        self._views.refuse("The rows to change")

    def for_query(self, *, remembered: bool) -> Self:
        """Copy for a query."""
        if remembered:
            self._views.refuse("The remembered rows")
        return self.fetching()

    def release(self) -> None:
        """Let go of what was fetched."""
        self._views.empty()

    def holding(self, ids: Any) -> Self:
        """Copy that holds some remembered rows, and only those."""
        fork = self.fetching()
        wanted = np.unique(np.asarray(ids, dtype=np.int64).reshape(-1))
        fork._views.hold(wanted)
        return fork

    def given(self, positions: Any) -> tuple[Any, np.ndarray | None]:
        """Rows at positions of what was fetched, as they were given, and their files."""
        ids = self.bank.ids[positions].numpy()
        if not len(ids):
            return self.rows[:0], None
        packed = self._views.reader.fetch(ids, rows=True).rows or []
        return RowCodec(self._views.summary.row_schemas).unpack(packed)

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows: those that may be found, as no others are in the store."""
        return self._views.n_findable

    @property
    def next_id(self) -> int:
        """Id that the next row gets."""
        return self._views.summary.next_id

    @property
    def rows_per_class(self) -> np.ndarray:
        """Number of rows of each class that may be found, int64 (n_classes,)."""
        return np.array(self._views.summary.rows_per_class, dtype=np.int64)

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row: of those nearest to a row at random."""
        views = self._views
        space, schema = views.specs[0].name, views.store.schema
        somewhere = rng.normal(size=(1, schema.spaces[space].width)).astype(np.float32)
        found = views.reader.search(space, somewhere, _DRAWN_FROM)
        return int(rng.choice(found[found >= 0]))

    def rows_at(self, positions: Any) -> Any:
        """Remembered rows at positions of what was fetched, as they were given."""
        return self.given(positions)[0]

    def remembered(self, positions: list[int]) -> list[dict[str, Any]]:
        """Give the training rows at positions of what was fetched, column name to value."""
        if not len(positions):
            return []
        rows, names = self.given(positions)
        own = {field.name: getattr(self, field.name) for field in fields(FittedModel)}
        plain = FittedModel(**own | {"rows": rows, "row_names": names})
        return plain.remembered(list(range(len(positions))))

    def at(self, reader: RowReader) -> Self:
        """Give another version."""
        summary = MemorySummary.of(reader)
        views = self._views.fork()
        views.reader, views.summary, views._bank = reader, summary, None
        predictor: Predictor = replace(self.predictor, views=views)
        predictor = replace(predictor, prior=views.class_shares())
        classes = np.array(summary.classes[: len(self.classes)], dtype=self.classes.dtype)
        fresh = summary.classes[len(classes) :]
        if fresh:
            dtype = np.result_type(classes, np.asarray(fresh))
            classes = np.concatenate([classes, np.array(fresh, dtype=dtype)])
        return replace(self, predictor=predictor, classes=classes)
