"""The memory: key spaces, indexes, and the neighbor sets for the head."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.model.groups import n_of_others, nearest_of_others, shared_groups
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel, RememberedLabels
from nearwise.estimators.model.log_linear_pool import with_new_classes
from nearwise.functional import Metric, Neighbors, pairwise_distances
from nearwise.memory import IndexName, MemoryBank, make_index
from nearwise.memory.changed_index import MOST_CHANGED, ChangedIndex
from nearwise.memory.index import BaseIndex, IndexState
from nearwise.memory.ties import tie_order
from nearwise.nn import NeighborSet, RememberedSpace
from nearwise.nn.neighbor_set import OWN_NEIGHBORS, from_zero, typical_distance

# Columns of the bank.
FOLD = "fold"  # int64 (n,): -1 if base or keys were trained on the row's label, else 0
FINDABLE = "findable"  # bool (n,): whether searches return the row; others are only predicted
BASE = "base_log_proba"  # (n, C): out-of-fold log-probabilities of the base
OPINION = "opinion"  # (n, C): out-of-bag forest log-probabilities, compared by a pretrained head
EMBEDDED = "embedded"  # float32 (n, 1280): features of photographs, for a refit
GROUP = "group"  # int64 (n,): rows of a group, such as a patient's, are left out together
COPIES = "copies"  # int64 (n,): group numbers if the groups are sets of equal rows
GROUPED = (GROUP, COPIES)
FITTED = "fitted_label"  # int64 (n,): label in the fit, or as added; present after a relabelling
TEXT = "text"  # the key space of texts beside other columns
TRAINED = "trained"  # the key space of networks trained with the rows' labels
Searchable = BaseIndex | ChangedIndex
_FADED = 1e-3  # least remaining share of a vote
_FEW = 8  # new rows below which distances are computed without a matrix product
_AT_ONCE = 2**24  # distances to new rows per block
_SEARCHED = 2**16  # queries per search
_LABELS = "labels"
_GROUPS = "groups"
_DERIVED = ("_indexes", "_sealed", "_own", "derived")


@dataclass(frozen=True)
class SpaceSpec:
    """Specification of a key space.

    Attributes
    ----------
    name : str
        "features", "supervised", "text", "trained", or a depth of a backbone.
    metric : Metric
    unit : float
        Typical neighbor distance; distances are divided by it.
    n_neighbors : int
        Neighbors per search.
    """

    name: str
    metric: Metric
    unit: float
    n_neighbors: int

    @property
    def reliability(self) -> str:
        """Name of the store column with the rows' reliability."""
        return f"reliability.{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `SpaceSpec(**data)` rebuilds it."""
        return asdict(self)


@dataclass(frozen=True)
class Forgetting:
    """Exponential decay of votes with age, counted in rows.

    Decay matters only between rows that disagree: an old row without newer opponents still decides
    the prediction.

    Attributes
    ----------
    half_life : float
        Half-life in rows.
    first : int
        Number of rows of the first fit, which all have the same age.
    """

    half_life: float
    first: int

    def arrival(self, ids: Tensor) -> Tensor:
        """Arrival of each row: its id; rows of the first fit share their last id."""
        return ids.clamp_min(self.first - 1)

    def share(self, age: Tensor) -> Tensor:
        """Remaining share of a vote at an age in rows, at least a thousandth."""
        return torch.exp2(-age / self.half_life).clamp_min(_FADED)


class Retrieval(NamedTuple):
    """Neighbors and base predictions of n queries.

    Attributes
    ----------
    base_log_proba : Tensor of shape (n, C)
    found : list of Neighbors
        One per key space that was searched.
    spaces : list of NeighborSet
        Head inputs of the neighbors, one per searched space.
    """

    base_log_proba: Tensor
    found: list[Neighbors]
    spaces: list[NeighborSet]

    def take(self, rows: Tensor) -> "Retrieval":
        """Select some of the queries."""
        found = [Neighbors(one.distances[rows], one.indices[rows]) for one in self.found]
        spaces = [space.take(rows) for space in self.spaces]
        return Retrieval(self.base_log_proba[rows], found, spaces)


def below_each_other(views: list[Retrieval]) -> tuple[list[NeighborSet], Tensor]:
    """Concatenate neighborhoods and base log-probabilities of different queries.

    The neighborhoods of a space are cut to their smallest number of neighbors.
    """
    spaces = []
    for seen in zip(*(view.spaces for view in views), strict=True):
        k = min(space.labels.shape[1] for space in seen)
        parts = zip(*(space.nearest(k) for space in seen), strict=True)
        spaces.append(NeighborSet(*map(torch.cat, parts)))
    return spaces, torch.cat([view.base_log_proba for view in views])


class MemoryViews:
    """Searches a bank and builds the neighbor sets for `PretrainedNeighborHead`.

    Two columns of the bank per space hold the nearest other rows of each row: "own.SPACE", int64
    (n, m), the ids, and "apart.SPACE", (n, m), the distances in the unit of the space. They are
    updated when rows are added or removed, so that a saved folder predicts like the live model.

    Parameters
    ----------
    n_columns : int
        Number of numeric and categorical columns of a row.
    bank : MemoryBank
        Keys of every spec, the column FOLD, and with a base the column BASE.
    specs : iterable of SpaceSpec
    index : IndexName
    device : torch.device, optional
        Accelerator for searches; the bank stays where it is, and results come to the CPU.
        Default: the CPU.
    label_model : LabelModel, optional
        Estimates the true classes of the rows.
    states : mapping of str to IndexState, optional
        States of indexes trained earlier on these rows, by space; see `index_states`.
    """

    holds_all: ClassVar[bool] = True  # rows are not fetched from a store on demand

    def __init__(
        self,
        n_columns: int,
        bank: MemoryBank,
        specs: Iterable[SpaceSpec],
        index: IndexName,
        device: torch.device | None = None,
        label_model: LabelModel = AS_GIVEN,
        states: Mapping[str, IndexState] | None = None,
    ) -> None:
        self.n_columns = n_columns
        self.bank, self.specs, self.label_model = bank, list(specs), label_model
        self.index = index
        self.device = device
        self.forgetting: Forgetting | None = None
        self._indexes: dict[str, tuple[Searchable, Tensor]] = {}
        self._sealed: dict[str, BaseIndex] = {}  # fitted to earlier rows
        self._states = dict(states or {})  # of sealed indexes that are not yet restored
        self._own: dict[str, Tensor] = {}
        self.derived: dict[Any, Any] = {}  # cache of values computed from the bank by callers

    def __getstate__(self) -> dict[str, Any]:
        # Indexes hold locks and C++ memory; they are restored on first use.
        return self.__dict__ | {name: {} for name in _DERIVED} | {"_states": self._learned()}

    def fork(self) -> Self:
        """Shallow copy for copy-on-write changes of bank and derived parts."""
        fork = object.__new__(type(self))
        # States first: another thread may be restoring indexes from them.
        derived = {name: dict(getattr(self, name)) for name in ("_states", *_DERIVED)}
        fork.__dict__ |= self.__dict__ | derived | {"bank": self.bank.fork()}
        fork.specs = list(self.specs)
        return fork

    def to(self, device: torch.device) -> None:
        """Move searches to a device; the bank stays on the CPU."""
        chosen = None if device.type == "cpu" else device
        if chosen != self.device:
            self._states = {} if self.index == "auto" else self._learned()
            for name in _DERIVED:
                getattr(self, name).clear()
            self.device = chosen

    @property
    def labels(self) -> Tensor:
        """Estimated true class positions of the remembered rows."""
        return self.remembered_labels.labels

    @property
    def remembered_labels(self) -> RememberedLabels:
        """Estimated true class positions of the remembered rows, and their certainty."""
        if _LABELS not in self.derived:
            self.derived[_LABELS] = self.label_model.labels(self.bank)
        found: RememberedLabels = self.derived[_LABELS]
        return found

    def class_shares(self) -> Tensor:
        """Weighted class shares of the memory, smoothed by half a row per class, (C,).

        Only searchable rows count; their weights include the rows that searches skip.
        """
        rows = self.rows()
        weight, labels = self.bank.sample_weight[rows], self.remembered_labels
        if labels.certainty is None:
            counts = weight @ self.bank.soft_labels()[rows]
        else:
            counts = torch.zeros(self.bank.n_classes)
            counts.scatter_add_(0, labels.labels[rows], weight * labels.certainty[rows])
        return ((counts + 0.5) / (counts + 0.5).sum()).float()

    def forget(self) -> None:
        """Clear everything derived from the bank, after a change of the bank.

        Fitted indexes stay if few rows changed, see `ChangedIndex`. That is decided here and not
        at the next search, so that it depends on the changes alone.
        """
        self._indexes.clear()
        self._own.clear()
        self.derived.clear()
        for spec in self.specs:
            if (spec.name in self._sealed or spec.name in self._states) and self.n_findable:
                self._index(spec)

    def index_states(self) -> dict[str, IndexState]:
        """States of the trained indexes, by space; a copy restored from them finds the same rows.

        Empty if the indexes are exact.
        """
        for spec in self.specs if self.n_findable else ():
            self._index(spec)
        return self._learned()

    def _learned(self) -> dict[str, IndexState]:
        """States of the indexes that exist already, by space."""
        on_device = self.index == "auto" and self.device is not None
        if on_device or self.index in ("exact", "faiss-flat-l2", "faiss-flat-ip"):
            return {}
        waiting = dict(self._states)
        return waiting | {name: index.state() for name, index in dict(self._sealed).items()}

    def forget_labels(self) -> None:
        """Clear everything derived from labels, after a change of labels alone.

        Indexes and the rows' nearest rows depend on keys, and stay.
        """
        self.derived.clear()

    def rows(self) -> Tensor:
        """Bank positions of the searchable rows."""
        if FINDABLE in self.bank.columns:
            return torch.nonzero(self.bank.columns[FINDABLE])[:, 0]
        return torch.arange(len(self.bank))

    @property
    def n_findable(self) -> int:
        """Number of searchable rows."""
        return len(self.rows())

    @property
    def groups(self) -> Tensor | None:
        """Group numbers of rows that are left out together, (n,).

        None without groups, or if every row is a group by itself.
        """
        name = next((one for one in GROUPED if one in self.bank.columns), None)
        if name is None:
            return None
        if _GROUPS not in self.derived:
            self.derived[_GROUPS] = shared_groups(self.bank.columns[name])
        numbers: Tensor | None = self.derived[_GROUPS]
        return numbers

    @property
    def n_others(self) -> int:
        """Least number of neighbors of a remembered row: searchable rows outside its group."""
        rows, groups = self.rows(), self.groups
        return len(rows) - 1 if groups is None else n_of_others(groups[rows])

    def retrieve(
        self,
        keys: dict[str, Tensor],
        base_log_proba: Tensor,
        n_classes: int,
        positions: Tensor | None = None,
    ) -> Retrieval:
        """Search every space and build the neighbor sets.

        Parameters
        ----------
        keys : dict of str to Tensor of shape (n, width)
            Queries by space, and OPINION if neighbors are compared by another prediction than
            the base's. Spaces without a key are skipped.
        base_log_proba : Tensor of shape (n, C0)
            Further classes, up to `n_classes`, get shares from neighbors in the first space.
        n_classes : int
        positions : int64 Tensor of shape (n,), optional
            Bank positions of queries that are remembered rows; each is left out by its id.
        """
        ids = None if positions is None else self.bank.ids[positions]
        base = base_log_proba.cpu()
        found: list[Neighbors] = []
        spaces: list[NeighborSet] = []
        opinion = keys.get(OPINION, base).cpu()
        for spec in self.specs:
            if spec.name not in keys:
                continue
            result = self.search(spec, keys[spec.name], spec.n_neighbors, ids)
            if not found and base.shape[1] < n_classes:
                near = (result.distances, self.labels[result.indices], n_classes)
                base, opinion = (with_new_classes(one, *near) for one in (base, opinion))
            found.append(result)
            spaces.append(self.neighborhood(spec, result, opinion, positions))
        return Retrieval(base, found, spaces)

    def retrieve_remembered(
        self, positions: Tensor, base_log_proba: Tensor, n_classes: int, *, trained: bool
    ) -> Retrieval:
        """Apply `retrieve` to rows of the bank; `trained` includes the trained space."""
        names = [spec.name for spec in self.specs if trained or spec.name != TRAINED]
        keys = {name: self.bank.keys[name][positions] for name in names}
        if OPINION in self.bank.columns:
            keys[OPINION] = self.bank.columns[OPINION][positions]
        return self.retrieve(keys, base_log_proba, n_classes, positions)

    def search(
        self, spec: SpaceSpec, query: Tensor, k: int, query_ids: Tensor | None = None
    ) -> Neighbors:
        """Nearest rows: distances in the space's unit, and bank positions; ties by `tie_order`.

        With `query_ids`, all rows of the query's group are left out.
        """
        index, positions = self._index(spec)
        query = query.cpu() if self.device is None else query.to(self.device)
        spare = len(positions) if query_ids is None else self.n_others
        if spare < 1 and len(positions) > 1:
            raise ValueError(
                f"All {len(positions)} rows that may be found are of one group, and rows of a "
                "group are no neighbors of each other. Give rows of other groups too; to leave "
                "groups out in turn takes at least 3."
            )
        if spare < 1:
            raise ValueError(
                f"The memory holds {len(positions)} rows that may be found. Add rows first."
            )

        def find(rows: Tensor | slice, n_neighbors: int, ids: Tensor | None) -> Neighbors:
            distances, indices = index.search(query[rows], n_neighbors, ids)
            return Neighbors(distances.cpu() / spec.unit, positions[indices.cpu()])

        groups = self.groups
        if query_ids is None or groups is None:
            return find(slice(None), min(k, spare), query_ids)
        own = groups[self.bank.positions(query_ids)]
        any_group = partial(find, ids=None)
        return nearest_of_others(any_group, own, groups, min(k, spare), len(positions))

    def _index(self, spec: SpaceSpec) -> tuple[Searchable, Tensor]:
        """Index of the searchable rows, and their positions in the bank."""
        if spec.name not in self._indexes:
            rows = self.rows()
            positions = rows[torch.from_numpy(tie_order(self.bank.ids[rows].numpy()))]
            self._indexes[spec.name] = (self._index_over(spec, positions), positions)
        return self._indexes[spec.name]

    def _index_over(self, spec: SpaceSpec, positions: Tensor) -> Searchable:
        """Index of these rows: the fitted one with few changes, else a newly fitted one."""
        keys, ids = self.bank.keys[spec.name], self.bank.ids
        waiting = self._states.get(spec.name)
        if waiting is not None:
            self._restore(spec, waiting, positions)
            self._states.pop(spec.name, None)  # last, as other threads may search meanwhile
        sealed = self._sealed.get(spec.name)
        if sealed is not None:  # keys of a row never change, so ids identify changed rows
            changed = ChangedIndex(sealed, keys, ids, positions)
            if changed.share_changed <= MOST_CHANGED:
                if changed.has_lost_rows and not sealed.is_exact:
                    # Lost rows would still influence the results of an approximate search.
                    sealed = self._restore(spec, sealed.state(), positions)
                    changed = ChangedIndex(sealed, keys, ids, positions)
                return sealed if torch.equal(sealed.ids.cpu(), ids[positions]) else changed
        index = self._new_index(spec, self.index, len(positions))
        self._sealed[spec.name] = index.fit(keys.index_select(0, positions), ids[positions])
        return index

    def _restore(self, spec: SpaceSpec, state: IndexState, positions: Tensor) -> BaseIndex:
        """Restore an index from its state, with only its rows among the positions."""
        keys, ids = self.bank.keys[spec.name], self.bank.ids
        stayed = positions[torch.isin(ids[positions], state.ids)]
        index = self._new_index(spec, state.name, len(stayed))
        if len(stayed):
            self._sealed[spec.name] = index.restore(state, keys[stayed], ids[stayed])
        return index

    def _new_index(self, spec: SpaceSpec, name: IndexName, n_rows: int) -> BaseIndex:
        chosen = _for_metric(name, spec.metric)
        return make_index(chosen, spec.metric, n_rows, device=self.device)

    def measure(self, specs: Iterable[SpaceSpec]) -> Self:
        """Compute the units of new spaces and each row's nearest rows from the filled bank."""
        for spec in specs:
            self.specs.append(measured(self, spec))
        self.judge()
        return self

    def keep(self, names: Iterable[str]) -> None:
        """Restrict searches to some of the spaces; the keys of all stay in the bank."""
        kept = set(names)
        for spec in (spec for spec in self.specs if spec.name not in kept):
            for column in _columns(spec):
                del self.bank.columns[column]
            for derived in ("_states", *_DERIVED):
                getattr(self, derived).pop(spec.name, None)
        self.specs = [spec for spec in self.specs if spec.name in kept]

    def weight(self, positions: Tensor) -> Tensor:
        """Sample weights of rows, decayed by age if `forgetting` is set."""
        weight = self.bank.sample_weight[positions]
        if self.forgetting is None:
            return weight
        came = self.forgetting.arrival(self.bank.ids)
        left = self.forgetting.share(int(came.max()) - came)
        return weight * left[positions]

    def own_neighbors(self, spec: SpaceSpec) -> Tensor:
        """Positions of the nearest other rows of each row, (n, m)."""
        if spec.name not in self._own:
            ids = self.bank.columns[f"own.{spec.name}"]
            self._own[spec.name] = self.bank.positions(ids.flatten()).view_as(ids)
        return self._own[spec.name]

    def neighborhood(
        self,
        spec: SpaceSpec,
        found: Neighbors,
        base_log_proba: Tensor,
        query_positions: Tensor | None = None,
    ) -> NeighborSet:
        """Neighbor set of a search result; `query_positions` if queries are rows of the bank."""
        base = base_log_proba if OPINION in self.bank.columns else None
        log_weight = torch.log(self.weight(found.indices))
        certainty = self.remembered_labels.certainty
        if certainty is not None:
            log_weight = log_weight + torch.log(certainty[found.indices])
        return self.space(spec).describe(found, base, query_positions, log_weight)

    def space(self, spec: SpaceSpec) -> RememberedSpace:
        """Remembered rows of a space, with their nearest rows and labels."""
        if spec.name not in self.derived:
            self.derived[spec.name] = self._described(spec)
        space: RememberedSpace = self.derived[spec.name]
        return space

    def _described(self, spec: SpaceSpec) -> RememberedSpace:
        bank, apart = self.bank, self.bank.columns[f"apart.{spec.name}"]
        base = bank.columns.get(OPINION)
        labels, certainty = self.remembered_labels
        if base is not None and base.shape[1] < bank.n_classes:
            first = self.specs[0]
            near = bank.columns[f"apart.{first.name}"], labels[self.own_neighbors(first)]
            base = with_new_classes(base, *near, bank.n_classes)
        weight = bank.sample_weight
        if certainty is not None:
            weight = weight * certainty
        if FINDABLE in bank.columns:  # weights of these include the other rows
            weight = weight * bank.columns[FINDABLE]
        return RememberedSpace(
            labels,
            self.own_neighbors(spec),
            apart,
            typical_distance(from_zero(apart, spec.metric)),
            bank.n_classes,
            self.n_columns,
            supervised=spec.name == "supervised",
            base_log_proba=base,
            weight=weight,
            metric=spec.metric,
            groups=self.groups,
        )

    # --- rows by id, and changes of them ---------------------------------------------------------

    @property
    def n_remembered(self) -> int:
        """Number of remembered rows."""
        return len(self.bank)

    @property
    def next_id(self) -> int:
        """Id of the next row."""
        return self.bank.next_id

    def rows_per_class(self, *, findable: bool = False) -> Tensor:
        """Count remembered (or only searchable) rows per given class, (C,)."""
        labels = self.bank.labels.argmax(1) if self.bank.is_soft else self.bank.labels
        chosen = labels[self.rows()] if findable else labels
        return torch.bincount(chosen, minlength=self.bank.n_classes)

    def hold(self, ids: Any) -> Tensor:
        """Positions of rows, loaded into the bank if needed; UnknownIdError if one is unknown."""
        return self.bank.positions(ids)

    def draw_id(self, rng: np.random.Generator) -> int:
        """Draw the id of a remembered row."""
        return int(rng.choice(self.bank.ids.numpy()))

    def add_rows(
        self,
        keys: dict[str, Tensor],
        columns: dict[str, Tensor],
        labels: Tensor,
        sample_weight: Tensor | None,
        n_classes: int,
    ) -> Tensor:
        """Add rows and return their ids; base and keys are not trained on their labels."""
        n_rows, kept = len(labels), self.bank.columns
        own = {name: kept[name] for spec in self.specs for name in _columns(spec)}
        new = {name: column.new_zeros(n_rows, column.shape[1]) for name, column in own.items()}
        new[FOLD] = torch.zeros(n_rows, dtype=torch.int64)
        new |= {FINDABLE: torch.ones(n_rows, dtype=torch.bool), FITTED: labels}
        columns = {name: part for name, part in (new | columns).items() if name in kept}
        ids = self.bank.add(
            keys, labels, sample_weight=sample_weight, n_classes=n_classes, columns=columns
        )
        self.forget()
        self._judge_new(self.bank.positions(ids))
        return ids

    def remove_rows(self, ids: Any) -> Tensor | None:
        """Remove rows; returns the former positions of the others, None for a store."""
        stays = torch.ones(len(self.bank), dtype=torch.bool)
        stays[self.bank.positions(ids)] = False
        self.bank.remove(ids)
        self.forget()
        self._judge_rest()
        return torch.nonzero(stays)[:, 0]

    def relabel_rows(self, ids: Any, labels: Tensor) -> None:
        """Relabel rows, without a new search.

        The bank keeps the former labels in a column.
        """
        former = self.bank.columns.setdefault(FITTED, self.bank.labels)
        self.bank.relabel(ids, labels)
        if torch.equal(former, self.bank.labels):
            del self.bank.columns[FITTED]
        self.forget_labels()

    # Overridden by a memory in a store; here all rows are in the bank.

    def require_all(self, what: str) -> None:
        """Raise ValueError if rows are in a store; `what` names the operation in the message."""

    def check_changeable(self) -> None:
        """Raise ValueError if only another process may change the memory."""

    def check_addable(self, fresh: list[Any], capacity: int | None, *, has_base: bool) -> None:
        """Raise ValueError if the memory supports no new classes or no capacity."""

    def holding(self, ids: Any) -> Self:
        """Memory with the rows of these ids loaded."""
        return self

    def for_query(self) -> Self:
        """Memory for a query."""
        return self

    def release(self) -> None:
        """Release fetched rows."""

    def given(self, positions: Any) -> tuple[Any, np.ndarray | None] | None:
        """Original rows at positions, and their files; None if the model has them."""
        return None

    def keep_given(self, rows: Any, names: np.ndarray | None) -> bool:
        """Store the original rows of a change; False if the model stores them."""
        return False

    # --- the columns ----------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return min(OWN_NEIGHBORS, self.n_others)

    def judge(self) -> None:
        """Search for each row's nearest rows and store them in the bank."""
        for spec in self.specs:
            self._note(spec)

    def _judge_new(self, positions: Tensor) -> None:
        """Search for neighbors of added rows, and update lists of nearest rows with them."""
        groups = self.groups
        for spec in self.specs:
            own, apart = (self.bank.columns[name] for name in _columns(spec))
            if own.shape[1] < self._width:  # there were too few rows before
                self._note(spec)
                continue
            n_old = len(self.bank) - len(positions)  # new rows are the last
            keys, ids = self.bank.keys[spec.name], self.bank.ids
            near, theirs, before = apart[:n_old], own[:n_old], keys[:n_old]
            for new in positions.split(max(1, _AT_ONCE // len(before))):
                to_new = _distances(before, keys[new], spec.metric) / spec.unit
                if groups is not None:
                    to_new[groups[:n_old, None] == groups[new]] = torch.inf
                near, order = torch.cat([near, to_new], 1).topk(self._width, largest=False)
                theirs = torch.cat([theirs, ids[new].expand(len(before), -1)], 1).gather(1, order)
            own, apart = torch.cat([theirs, own[n_old:]]), torch.cat([near, apart[n_old:]])
            self.bank.columns |= dict(zip(_columns(spec), (own, apart), strict=True))
            self._note(spec, positions)

    def _judge_rest(self) -> None:
        """Repeat the search for rows with removed neighbors."""
        for spec in self.specs:
            own = self.bank.columns[f"own.{spec.name}"]
            if own.shape[1] > self._width:
                self._note(spec)
                continue
            lost = ~torch.isin(own, self.bank.ids).all(1)
            self._note(spec, torch.nonzero(lost)[:, 0])

    def _note(self, spec: SpaceSpec, positions: Tensor | None = None) -> None:
        """Search for the nearest other rows of all or some rows, and store them in the bank."""
        self._own.pop(spec.name, None)
        bank, names = self.bank, _columns(spec)
        if positions is not None and not len(positions):
            return
        if positions is None:
            made = [torch.empty(len(bank), self._width, dtype=torch.int64)]
            made.append(torch.empty(len(bank), self._width))
            positions = torch.arange(len(bank))
        else:
            made = [bank.columns[name].clone() for name in names]
        for some in positions.split(_SEARCHED):  # search results are larger than the stored lists
            found = self.search(spec, bank.keys[spec.name][some], self._width, bank.ids[some])
            made[0][some], made[1][some] = bank.ids[found.indices], found.distances
        bank.columns |= dict(zip(names, made, strict=True))


def measured(views: MemoryViews, spec: SpaceSpec) -> SpaceSpec:
    """Set the unit of a space to its median neighbor distance, over at most 1,000 rows."""
    rows = views.rows()
    some = rows[:: max(1, len(rows) // 1000)]
    keys = views.bank.keys[spec.name][some]
    found = views.search(spec, keys, spec.n_neighbors, views.bank.ids[some])
    return SpaceSpec(**(spec.to_json() | {"unit": typical_distance(found.distances)}))


def _for_metric(index: IndexName, metric: Metric) -> IndexName:
    """Name of the flat FAISS index for a metric (Euclidean or inner product); others unchanged."""
    if not index.startswith("faiss-flat") or metric == "manhattan":
        return index
    return "faiss-flat-l2" if metric in ("euclidean", "sqeuclidean") else "faiss-flat-ip"


def _distances(rows: Tensor, new: Tensor, metric: Metric) -> Tensor:
    """Distances of remembered to new rows; few are computed directly, as a product copies all."""
    if metric == "euclidean" and len(new) <= _FEW:
        direct = "donot_use_mm_for_euclid_dist"
        return torch.cdist(rows.float(), new.float(), compute_mode=direct)
    return pairwise_distances(rows, new, metric)


def _columns(spec: SpaceSpec) -> tuple[str, str]:
    return f"own.{spec.name}", f"apart.{spec.name}"
