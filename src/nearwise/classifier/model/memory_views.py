"""The memory as it is searched: key spaces, indexes, reliability and neighborhoods."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from nearwise.classifier.model.label_model import AS_GIVEN, LabelModel, RememberedLabels
from nearwise.classifier.model.log_linear_pool import with_new_classes
from nearwise.functional import Metric, Neighbors
from nearwise.memory import IndexName, MemoryBank, make_index
from nearwise.memory.changed_index import MOST_CHANGED, ChangedIndex
from nearwise.memory.index import BaseIndex, IndexState
from nearwise.memory.ties import tie_order
from nearwise.nn import describe_neighborhood, pair_reliability
from nearwise.nn.neighbor_set import typical_distance

# Columns of the bank.
FOLD = "fold"  # int64 (n,): 0 for rows that the base predicted out of fold; -1 for all others
FINDABLE = "findable"  # bool (n,): whether a row is ever found; others are predicted and kept only
BASE = "base_log_proba"  # (n, C): out-of-fold log-probabilities of the base
OPINION = "opinion"  # (n, C): those that a pretrained head compares, of one forest, out of bag
TRAINED = "trained"  # the space of keys that networks were trained for, with rows' labels
Searchable = BaseIndex | ChangedIndex
_FADED = 1e-3  # share of its vote that the oldest row keeps
_OWN_NEIGHBORS = 16
_LABELS = "labels"
_DERIVED = ("_indexes", "_sealed", "_own", "_copies", "derived")


@dataclass(frozen=True)
class SpaceSpec:
    """One key space.

    Attributes
    ----------
    name : str
        "features", "supervised", "trained", or a depth of a backbone.
    metric : Metric
    unit : float
        Typical neighbor distance; distances are divided by it.
    n_neighbors : int
        Neighbors searched for.
    """

    name: str
    metric: Metric
    unit: float
    n_neighbors: int

    @property
    def judged_in(self) -> str:
        """Space whose neighbors give a row's reliability: its own, or the features'.

        A trained space gathers its training rows around their labels, right or wrong, so there
        the features' neighbors are taken.
        """
        return "features" if self.name == TRAINED else self.name

    @property
    def reliability(self) -> str:
        """Name of the bank's column with the rows' reliability."""
        return f"reliability.{self.judged_in}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `SpaceSpec(**data)` rebuilds it."""
        return asdict(self)


@dataclass(frozen=True)
class Forgetting:
    """How votes fade with age: by half every this many rows that came since.

    A faded row still wins where no newer one stands against it; only where they disagree does the
    newer one outvote it.

    Attributes
    ----------
    half_life : float
        In rows.
    first : int
        Rows of the first fit, which came at once.
    """

    half_life: float
    first: int

    def arrival(self, ids: Tensor) -> Tensor:
        """When each row came: its id, that of the last row for those of the first fit."""
        return ids.clamp_min(self.first - 1)

    def share(self, age: Tensor) -> Tensor:
        """Weight left at an age in rows, at least a thousandth."""
        return torch.exp2(-age / self.half_life).clamp_min(_FADED)


class Retrieval(NamedTuple):
    """What is retrieved for some queries.

    Attributes
    ----------
    base_log_proba : Tensor of shape (n, C)
    found : list of Neighbors
        One per key space that was searched.
    spaces : list of Neighborhood or NeighborSet
        For each of them: what the head is given of the neighbors found.
    """

    base_log_proba: Tensor
    found: list[Neighbors]
    spaces: list[Any]

    def take(self, rows: Tensor) -> "Retrieval":
        """Return what was retrieved for some of the queries."""
        found = [Neighbors(one.distances[rows], one.indices[rows]) for one in self.found]
        spaces = [space.take(rows) for space in self.spaces]
        return Retrieval(self.base_log_proba[rows], found, spaces)


def below_each_other(views: list[Retrieval]) -> tuple[list[Any], Tensor]:
    """Join neighborhoods and base log-probabilities of different queries, one below the other.

    Neighborhoods of a space are cut to the fewest neighbors that one of them has.
    """
    spaces = []
    for seen in zip(*(view.spaces for view in views), strict=True):
        k = min(space.labels.shape[1] for space in seen)
        parts = zip(*(space.nearest(k) for space in seen), strict=True)
        spaces.append(type(seen[0])(*map(torch.cat, parts)))
    return spaces, torch.cat([view.base_log_proba for view in views])


class MemoryViews:
    """Searches and describes neighborhoods in a bank.

    Parameters
    ----------
    bank : MemoryBank
        Keys of every spec, and the columns FOLD, BASE (with a base) and of reliability.
    specs : iterable of SpaceSpec
    index : IndexName
    memory_budget : int
        Bytes of working memory of a search.
    device : torch.device, optional
        Accelerator that searches run on, with copies of what they need; the bank stays where it
        is. None: the CPU. Queries on the device have their neighborhoods there, others have them
        on the CPU.
    label_model : LabelModel, optional
        Gives the classes that the rows are taken to have.
    states : mapping of str to IndexState, optional
        What indexes of these rows have learned before, by space; see `index_states`.
    """

    def __init__(
        self,
        bank: MemoryBank,
        specs: Iterable[SpaceSpec],
        index: IndexName,
        memory_budget: int,
        device: torch.device | None = None,
        label_model: LabelModel = AS_GIVEN,
        states: Mapping[str, IndexState] | None = None,
    ) -> None:
        self.bank, self.specs, self.label_model = bank, list(specs), label_model
        self.index, self.memory_budget = index, memory_budget
        self.device = device
        self.forgetting: Forgetting | None = None
        self._indexes: dict[str, tuple[Searchable, Tensor]] = {}
        self._sealed: dict[str, BaseIndex] = {}  # fitted to former rows
        self._states = dict(states or {})  # of sealed indexes that are still to be made
        self._own: dict[str, Tensor] = {}
        self._copies: dict[str, tuple[Tensor, Tensor]] = {}
        self.derived: dict[Any, Any] = {}  # what others worked out from the bank as it is

    def __getstate__(self) -> dict[str, Any]:
        # Indexes hold locks and C++ memory; they are made again where they are needed.
        return self.__dict__ | {name: {} for name in _DERIVED} | {"_states": self._learned()}

    def fork(self) -> Self:
        """Copy for a change: the copy's bank and derived parts can change without this one's."""
        fork = object.__new__(type(self))
        # States first: a reader in another thread may be making indexes of them.
        derived = {name: dict(getattr(self, name)) for name in ("_states", *_DERIVED)}
        fork.__dict__ |= self.__dict__ | derived | {"bank": self.bank.fork()}
        fork.specs = list(self.specs)
        return fork

    def to(self, device: torch.device) -> None:
        """Search on a device from now on; the bank stays on the CPU."""
        chosen = None if device.type == "cpu" else device
        if chosen != self.device:
            self._states = {} if self.index == "auto" else self._learned()
            for name in _DERIVED:
                getattr(self, name).clear()
            self.device = chosen

    def on_device(self, rows: Tensor) -> Tensor:
        """Bring queries to where they are searched fastest."""
        return rows if self.device is None else rows.to(self.device)

    def _beside(self, name: str, column: Tensor, rows: Tensor) -> Tensor:
        """Copy a column of the bank to the device of `rows`, once."""
        if column.device == rows.device:
            return column
        source, copy = self._copies.get(name, (None, None))
        if source is not column or copy is None or copy.device != rows.device:
            copy = column.to(rows.device)
            self._copies[name] = (column, copy)
        return copy

    @property
    def labels(self) -> Tensor:
        """Class positions of the remembered rows, as they are taken to be."""
        return self.remembered_labels.labels

    def labels_of(self, found: Tensor) -> Tensor:
        """Class positions of what was found, as they are taken to be, on its device."""
        return self._beside("labels", self.labels, found)[found]

    @property
    def remembered_labels(self) -> RememberedLabels:
        """Class positions of the remembered rows as they are taken to be, and how sure."""
        if _LABELS not in self.derived:
            self.derived[_LABELS] = self.label_model.labels(self.bank)
        found: RememberedLabels = self.derived[_LABELS]
        return found

    def class_shares(self) -> Tensor:
        """Weighted class shares of the memory, each class counted half a row more, (C,).

        Of the rows that may be found, whose weights count for those that may not.
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
        """Drop what was derived from the bank; call after it changed.

        Fitted indexes stay: they serve rows that have changed a little, see `ChangedIndex`. Whether
        they do is decided here and not at the next search, so that it depends on the changes alone.
        """
        self._indexes.clear()
        self._own.clear()
        self.derived.clear()
        self._copies.clear()
        for spec in self.specs:
            if (spec.name in self._sealed or spec.name in self._states) and self.n_findable:
                self._index(spec)

    def index_states(self) -> dict[str, IndexState]:
        """Give what the indexes have learned, by space: with it, copies find the same rows.

        Empty where indexes are exact whatever the rows.
        """
        for spec in self.specs if self.n_findable else ():
            self._index(spec)
        return self._learned()

    def _learned(self) -> dict[str, IndexState]:
        """Give the same, of indexes that are there."""
        on_device = self.index == "auto" and self.device is not None
        if on_device or self.index in ("exact", "faiss-flat-l2", "faiss-flat-ip"):
            return {}
        waiting = dict(self._states)
        return waiting | {name: index.state() for name, index in dict(self._sealed).items()}

    def forget_labels(self) -> None:
        """Drop what was derived from labels; call after a change of nothing else.

        Indexes and the rows' own neighbors depend on keys, and stay.
        """
        self.derived.clear()

    def rows(self) -> Tensor:
        """Bank positions that may be found."""
        if FINDABLE in self.bank.columns:
            return torch.nonzero(self.bank.columns[FINDABLE])[:, 0]
        return torch.arange(len(self.bank))

    @property
    def n_findable(self) -> int:
        """Number of rows that may be found."""
        return len(self.rows())

    def retrieve(
        self,
        keys: dict[str, Tensor],
        base_log_proba: Tensor,
        n_classes: int,
        positions: Tensor | None = None,
    ) -> Retrieval:
        """Search every space and describe what is found.

        Parameters
        ----------
        keys : dict of str to Tensor of shape (n, width)
            The queries, by the names of the spaces, and OPINION where neighbors are compared by
            another prediction than the base's. Spaces without a key are left out.
        base_log_proba : Tensor of shape (n, C0)
            For the classes beyond, up to `n_classes`, neighbors in the first space stand in.
        n_classes : int
        positions : int64 Tensor of shape (n,), optional
            Of queries that are remembered themselves: each is left out by its id.
        """
        ids = None if positions is None else self.bank.ids[positions]
        base = self.on_device(base_log_proba)
        found: list[Neighbors] = []
        spaces: list[Any] = []
        opinion = keys.get(OPINION, base)
        for spec in self.specs:
            if spec.name not in keys:
                continue
            query = self.on_device(keys[spec.name])
            result = self.search(spec, query, spec.n_neighbors, ids)
            if not found and base.shape[1] < n_classes:
                near = (result.distances, self.labels_of(result.indices), n_classes)
                base, opinion = (with_new_classes(one, *near) for one in (base, opinion))
            found.append(result)
            spaces.append(self.neighborhood(spec, result, opinion, positions))
        return Retrieval(base, found, spaces)

    def retrieve_remembered(
        self, positions: Tensor, base_log_proba: Tensor, n_classes: int
    ) -> Retrieval:
        """Do what `retrieve` does for rows of the bank.

        Without the trained space, whose keys depend on the rows' labels.
        """
        names = [spec.name for spec in self.specs if spec.name != TRAINED]
        keys = {name: self.bank.keys[name][positions] for name in names}
        if OPINION in self.bank.columns:
            keys[OPINION] = self.bank.columns[OPINION][positions]
        return self.retrieve(keys, base_log_proba, n_classes, positions)

    def search(
        self, spec: SpaceSpec, query: Tensor, k: int, query_ids: Tensor | None = None
    ) -> Neighbors:
        """Nearest rows: distances in the space's unit, and bank positions; ties by `tie_order`."""
        index, positions = self._index(spec)
        spare = len(positions) - (query_ids is not None)
        if spare < 1:
            raise ValueError(
                f"The memory holds {len(positions)} rows that may be found. Add rows first."
            )
        found = index.search(query, min(k, spare), query_ids)
        at = self._beside(f"positions {spec.name}", positions, found.indices)
        return Neighbors(found.distances / spec.unit, at[found.indices])

    def _index(self, spec: SpaceSpec) -> tuple[Searchable, Tensor]:
        """Index over the rows that may be found, and their positions in the bank."""
        if spec.name not in self._indexes:
            rows = self.rows()
            positions = rows[torch.from_numpy(tie_order(self.bank.ids[rows].numpy()))]
            self._indexes[spec.name] = (self._index_over(spec, positions), positions)
        return self._indexes[spec.name]

    def _index_over(self, spec: SpaceSpec, positions: Tensor) -> Searchable:
        """Let the index of former rows serve these, or fit another where too many have changed."""
        keys, ids = self.bank.keys[spec.name], self.bank.ids
        waiting = self._states.get(spec.name)
        if waiting is not None:
            self._restore(spec, waiting, positions)
            self._states.pop(spec.name, None)  # not before: other threads may search, too
        sealed = self._sealed.get(spec.name)
        if sealed is not None:  # keys of a row never change, so ids show what came and went
            changed = ChangedIndex(sealed, keys, ids, positions)
            if changed.share_changed <= MOST_CHANGED:
                if changed.has_lost_rows and not sealed.is_exact:
                    # What is lost would still decide which others are found.
                    sealed = self._restore(spec, sealed.state(), positions)
                    changed = ChangedIndex(sealed, keys, ids, positions)
                return sealed if torch.equal(sealed.ids.cpu(), ids[positions]) else changed
        index = self._new_index(spec, self.index, len(positions))
        self._sealed[spec.name] = index.fit(keys.index_select(0, positions), ids[positions])
        return index

    def _restore(self, spec: SpaceSpec, state: IndexState, positions: Tensor) -> BaseIndex:
        """Make the index of a state again, with those of its rows that are among the positions."""
        keys, ids = self.bank.keys[spec.name], self.bank.ids
        stayed = positions[torch.isin(ids[positions], state.ids)]
        index = self._new_index(spec, state.name, len(stayed))
        if len(stayed):
            self._sealed[spec.name] = index.restore(state, keys[stayed], ids[stayed])
        return index

    def _new_index(self, spec: SpaceSpec, name: IndexName, n_rows: int) -> BaseIndex:
        budget, device = self.memory_budget, self.device
        chosen = _for_metric(name, spec.metric)
        return make_index(chosen, spec.metric, n_rows, memory_budget=budget, device=device)

    def own_neighbors(self, spec: SpaceSpec) -> Tensor:
        """Positions of each findable row's own nearest rows, itself left out; -1 elsewhere."""
        spec = self._judged(spec)
        if spec.name not in self._own:
            positions = self.rows()
            found = self._nearest_others(spec, positions)
            own = torch.full((len(self.bank), found.shape[1]), -1)
            own[positions] = found
            self._own[spec.name] = own
        return self._own[spec.name]

    def _judged(self, spec: SpaceSpec) -> SpaceSpec:
        """Space whose neighbors give reliability."""
        return next(other for other in self.specs if other.name == spec.judged_in)

    def _nearest_others(self, spec: SpaceSpec, positions: Tensor) -> Tensor:
        """Positions of the rows nearest to some findable ones, themselves left out."""
        keys = self.bank.keys[spec.name][positions]
        # One more than are counted, so that a query that is left out can be replaced.
        wanted = min(_OWN_NEIGHBORS + 1, max(spec.n_neighbors, 2), len(self.rows()) - 1)
        return self.search(spec, keys, wanted, self.bank.ids[positions]).indices

    def reliability(self, spec: SpaceSpec, positions: Tensor | None = None) -> Tensor:
        """Share of each row's own neighbors that carry its label, (n,); 0.5 where unknown.

        Of all rows, or of some findable ones, which alone are then searched for.
        """
        labels, spec = self.labels, self._judged(spec)
        if positions is None:
            own, mine = self.own_neighbors(spec), labels
        elif spec.name in self._own:
            own, mine = self._own[spec.name][positions], labels[positions]
        else:
            own, mine = self._nearest_others(spec, positions), labels[positions]
        m = max(own.shape[1] - 1, 1)
        same = (labels[own[:, :m].clamp_min(0)] == mine[:, None]).float().mean(1)
        same[own[:, 0] < 0] = 0.5
        return same

    def reliability_of_new(self, spec: SpaceSpec, positions: Tensor, n_known: int) -> Tensor:
        """Share of the neighbors of rows added after fitting that carry their labels, (n_new,).

        Of a class that is new (at or beyond `n_known`) there may be few rows yet: the share is of
        those there are, drawn towards the usual reliability as by four rows more.
        """
        keys = self.bank.keys[spec.name][positions]
        found = self.search(spec, keys, _OWN_NEIGHBORS, self.bank.ids[positions])
        everyone = self.labels
        labels = everyone[positions]
        same = (everyone[found.indices] == labels[:, None]).float().sum(1)
        others = torch.bincount(everyone)[labels] - 1
        k = float(found.indices.shape[1])
        usual = self.bank.columns[spec.reliability].mean()
        of_new_class = (same + 4 * usual) / (others.clamp_max(int(k)) + 4)
        return torch.where(labels < n_known, same / k, of_new_class)

    def measure(self, specs: Iterable[SpaceSpec]) -> Self:
        """Take the units of some spaces and the rows' reliability from the filled bank."""
        for spec in specs:
            self.specs.append(measured(self, spec))
        self.judge()
        return self

    def _judging(self) -> list[SpaceSpec]:
        """Spaces whose own neighbors give reliability."""
        return [spec for spec in self.specs if spec.judged_in == spec.name]

    def judge(self) -> None:
        """Store the prediction of each row by its own neighbors in the bank; after a fit."""
        for spec in self._judging():
            self.bank.columns[spec.reliability] = self.reliability(spec)

    def columns_of_new(self, n_rows: int) -> dict[str, Tensor]:
        """Columns that `judge_new` fills for rows that are added."""
        return {spec.reliability: torch.zeros(n_rows) for spec in self._judging()}

    def judge_new(self, positions: Tensor, n_known: int) -> None:
        """Note the reliability of rows that were added; see `reliability_of_new`."""
        for spec in self._judging():
            column = self.bank.columns[spec.reliability].clone()
            column[positions] = float("nan")
            self.bank.columns[spec.reliability] = column.nan_to_num(float(column.nanmean()))
            new = self.reliability_of_new(spec, positions, n_known)
            self.bank.columns[spec.reliability][positions] = new

    def judge_relabelled(self, positions: Tensor) -> None:
        """Note the reliability of rows whose labels changed; no other row is searched for."""
        allowed = positions[torch.isin(positions, self.rows())]
        for spec in self._judging():
            column = self.bank.columns[spec.reliability].clone()
            column[allowed] = self.reliability(spec, allowed)
            self.bank.columns[spec.reliability] = column

    def judge_rest(self) -> None:
        """Note what changes for rows whose neighbors were removed: here nothing."""

    def weight(self, positions: Tensor) -> Tensor:
        """Sample weights of rows, faded by their age where the memory forgets."""
        weight = self._beside("weight", self.bank.sample_weight, positions)[positions]
        if self.forgetting is None:
            return weight
        came = self.forgetting.arrival(self.bank.ids)
        left = self.forgetting.share(int(came.max()) - came)
        return weight * left.to(positions.device)[positions]

    def neighborhood(
        self,
        spec: SpaceSpec,
        found: Neighbors,
        base_log_proba: Tensor,
        query_positions: Tensor | None = None,
    ) -> Any:
        """Describe what was found; `query_positions` where queries are rows of the bank."""
        here = found.indices
        labels, certainty = self.labels_of(here), self.remembered_labels.certainty
        certainty = None if certainty is None else certainty.to(here.device)[here]
        if query_positions is None:
            column = self.bank.columns[spec.reliability]
            reliability = self._beside(spec.reliability, column, here)[here]
        else:
            reliability = pair_reliability(
                here,
                self._beside(f"own {spec.name}", self.own_neighbors(spec), here),
                self._beside("labels", self.labels, here),
                query_positions.to(here.device),
            )
        weight = self.weight(here)
        return describe_neighborhood(
            found.distances,
            labels,
            reliability,
            base_log_proba,
            None if certainty is None else torch.log(certainty),
            torch.log(weight),
            certainty,
        )


def measured(views: MemoryViews, spec: SpaceSpec) -> SpaceSpec:
    """Set the unit of a space to its median neighbor distance, over at most 1,000 rows."""
    rows = views.rows()
    some = rows[:: max(1, len(rows) // 1000)]
    keys = views.bank.keys[spec.name][some]
    found = views.search(spec, keys, spec.n_neighbors, views.bank.ids[some])
    return SpaceSpec(**(spec.to_json() | {"unit": typical_distance(found.distances)}))


def _for_metric(index: IndexName, metric: Metric) -> IndexName:
    """Flat FAISS has one index for Euclidean metrics and one for inner products."""
    if not index.startswith("faiss-flat") or metric == "manhattan":
        return index
    return "faiss-flat-l2" if metric in ("euclidean", "sqeuclidean") else "faiss-flat-ip"
