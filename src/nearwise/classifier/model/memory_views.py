"""How each member sees the memory: key spaces, search, reliability and neighborhoods."""

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor

from nearwise.classifier.model.key_space import Forgetting, SpaceSpec
from nearwise.classifier.model.label_model import AS_GIVEN, LabelModel, RememberedLabels
from nearwise.functional import Metric, Neighbors
from nearwise.memory import IndexName, MemoryBank, NeighborIndex, make_index
from nearwise.nn import Neighborhood, describe_neighborhood, pair_reliability

FOLD = "side.fold"  # which member held a row out; -1 for rows added after fitting
ASKED = "side.asked"  # 0 for rows that are predicted and kept but never found, 1 for the others
BASE = "side.base"  # out-of-fold log-probabilities of the base
_OWN_NEIGHBORS = 16
_DERIVED = ("_indexes", "_own", "_copies", "_labels", "derived")


class MemoryViews:
    """Searches and describes neighborhoods in a bank, member by member.

    Parameters
    ----------
    bank : MemoryBank
        Keys of every spec, and the columns FOLD, BASE (with a base) and reliability.
    specs : iterable of SpaceSpec
    index : IndexName
    memory_budget : int
        Bytes of working memory of a search.
    device : torch.device, optional
        Accelerator that searches run on, with copies of what they need; the bank stays where it
        is. None: the CPU. Queries on the device have their neighborhoods there, others have them
        on the CPU.
    label_model : LabelModel, optional
        Says of which classes members take the rows to be.
    """

    def __init__(
        self,
        bank: MemoryBank,
        specs: Iterable[SpaceSpec],
        index: IndexName,
        memory_budget: int,
        device: torch.device | None = None,
        label_model: LabelModel = AS_GIVEN,
    ) -> None:
        self.bank, self.specs, self.label_model = bank, list(specs), label_model
        self.index, self.memory_budget = index, memory_budget
        self.device = device
        self.forgetting: Forgetting | None = None
        self._indexes: dict[tuple[str, int], tuple[NeighborIndex, Tensor]] = {}
        self._own: dict[tuple[str, int], Tensor] = {}
        self._copies: dict[str, tuple[Tensor, Tensor]] = {}
        self._labels: dict[int, RememberedLabels] = {}
        self.derived: dict[Any, Any] = {}  # what others worked out from the bank as it is

    def __getstate__(self) -> dict[str, Any]:
        # Indexes hold locks and C++ memory; they are built again where they are needed.
        return self.__dict__ | {name: {} for name in _DERIVED}

    def fork(self) -> Self:
        """Copy for a change: the copy's bank and derived parts can change without this one's."""
        fork = object.__new__(type(self))
        derived = {name: dict(getattr(self, name)) for name in _DERIVED}
        fork.__dict__ |= self.__dict__ | derived | {"bank": self.bank.fork()}
        fork.specs = list(self.specs)
        return fork

    def to_device(self, rows: Tensor) -> Tensor:
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

    def labels(self, member: int) -> Tensor:
        """Class positions of the remembered rows, as a member takes them to be."""
        return self.remembered_labels(member).labels

    def labels_of(self, member: int, found: Tensor) -> Tensor:
        """Class positions of what was found, as a member takes them to be, on its device."""
        return self._beside(f"labels {member}", self.labels(member), found)[found]

    def remembered_labels(self, member: int) -> RememberedLabels:
        """Class positions of the remembered rows as a member takes them to be, and how sure."""
        version = min(member, self.label_model.n_versions - 1)
        if version not in self._labels:
            self._labels[version] = self.label_model.labels(self.bank, version)
        return self._labels[version]

    def side(self, spec: SpaceSpec, member: int) -> str:
        """Name of the bank's column with the rows' reliability, as a member judges it."""
        if spec.scope == "fold":
            return spec.side
        return self.label_model.column(spec.side, member)

    @property
    def label_versions(self) -> range:
        """Members whose labels of the remembered rows differ; the first stands for all members."""
        return range(self.label_model.n_versions)

    def forget(self) -> None:
        """Drop what was derived from the bank; call after it changed."""
        self._indexes.clear()
        self._own.clear()
        self.derived.clear()
        self._copies.clear()
        self._labels.clear()

    def forget_labels(self) -> None:
        """Drop what was derived from labels; call after they alone changed.

        Indexes and the rows' own neighbors go by keys, and stay.
        """
        self.derived.clear()
        self._labels.clear()

    def rows(self, spec: SpaceSpec, member: int) -> Tensor:
        """Bank positions that a member may find in a space."""
        allowed = torch.ones(len(self.bank), dtype=torch.bool)
        if ASKED in self.bank.keys:
            allowed = self.bank.keys[ASKED][:, 0] > 0
        if spec.scope == "fold":
            fold = self.bank.keys[FOLD][:, 0]
            allowed = allowed & ((fold == member) | (fold < 0))
        return torch.nonzero(allowed)[:, 0]

    def search(
        self, spec: SpaceSpec, member: int, query: Tensor, k: int, query_ids: Tensor | None = None
    ) -> Neighbors:
        """Nearest rows: distances in the space's unit, and bank positions."""
        index, positions = self._index(spec, member)
        spare = len(positions) - (query_ids is not None)
        if spare < 1:
            raise ValueError(
                f"The memory holds {len(positions)} rows that may be asked. Add rows first."
            )
        found = index.search(query, min(k, spare), query_ids)
        at = self._beside(f"positions {spec.name} {member}", positions, found.indices)
        return Neighbors(found.distances / spec.unit, at[found.indices])

    def _index(self, spec: SpaceSpec, member: int) -> tuple[NeighborIndex, Tensor]:
        shared = spec.scope == "all" and not spec.per_member
        cache_key = (spec.name, 0 if shared else member)
        if cache_key not in self._indexes:
            positions = self.rows(spec, member)
            keys = self.bank.keys[spec.key(member)]
            index = make_index(
                _for_metric(self.index, spec.metric),
                spec.metric,
                len(positions),
                memory_budget=self.memory_budget,
                device=self.device,
            )
            everything = len(positions) == len(keys)
            index.fit(keys if everything else keys[positions], self.bank.ids[positions])
            self._indexes[cache_key] = (index, positions)
        return self._indexes[cache_key]

    def own_neighbors(self, spec: SpaceSpec, member: int) -> Tensor:
        """Positions of each findable row's own nearest rows, itself left out; -1 elsewhere."""
        spec, cache_key = self._judged(spec, member)
        if cache_key not in self._own:
            positions = self.rows(spec, member)
            found = self._nearest_others(spec, member, positions)
            own = torch.full((len(self.bank), found.shape[1]), -1)
            own[positions] = found
            self._own[cache_key] = own
        return self._own[cache_key]

    def _judged(self, spec: SpaceSpec, member: int) -> tuple[SpaceSpec, tuple[str, int]]:
        """Space whose neighbors tell reliability, and where they are kept."""
        spec = next(other for other in self.specs if other.name == spec.judged_in)
        return spec, (spec.name, 0 if spec.scope == "all" else member)

    def _nearest_others(self, spec: SpaceSpec, member: int, positions: Tensor) -> Tensor:
        """Positions of the rows nearest to some findable ones, themselves left out."""
        keys = self.bank.keys[spec.key(member)][positions]
        # One more than are counted, so that a query that is left out can be replaced.
        wanted = min(_OWN_NEIGHBORS + 1, max(spec.n_neighbors, 2), len(self.rows(spec, member)) - 1)
        return self.search(spec, member, keys, wanted, self.bank.ids[positions]).indices

    def reliability(self, spec: SpaceSpec, member: int, positions: Tensor | None = None) -> Tensor:
        """Share of each row's own neighbors that carry its label, (n, 1); 0.5 where unknown.

        Of all rows, or of some findable ones, which alone are then searched for.
        """
        labels = self.labels(member)
        spec, cache_key = self._judged(spec, member)
        if positions is None:
            own, mine = self.own_neighbors(spec, member), labels
        elif cache_key in self._own:
            own, mine = self._own[cache_key][positions], labels[positions]
        else:
            own, mine = self._nearest_others(spec, member, positions), labels[positions]
        m = max(own.shape[1] - 1, 1)
        same = (labels[own[:, :m].clamp_min(0)] == mine[:, None]).float().mean(1)
        same[own[:, 0] < 0] = 0.5
        return same[:, None]

    def reliability_of_new(
        self, spec: SpaceSpec, member: int, positions: Tensor, n_known: int
    ) -> Tensor:
        """Share of the neighbors of rows added after fitting that carry their labels, (n_new,).

        Of a class that is new (at or beyond `n_known`) there may be few rows yet: the share is of
        those there are, drawn towards the usual reliability as by four rows more.
        """
        keys = self.bank.keys[spec.key(member)][positions]
        found = self.search(spec, member, keys, _OWN_NEIGHBORS, self.bank.ids[positions])
        everyone = self.labels(member)
        labels = everyone[positions]
        same = (everyone[found.indices] == labels[:, None]).float().sum(1)
        others = torch.bincount(everyone)[labels] - 1
        k = float(found.indices.shape[1])
        usual = self.bank.keys[self.side(spec, member)].mean()
        of_new_class = (same + 4 * usual) / (others.clamp_max(int(k)) + 4)
        return torch.where(labels < n_known, same / k, of_new_class)

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
        member: int,
        found: Neighbors,
        base_log_proba: Tensor,
        query_positions: Tensor | None = None,
    ) -> Neighborhood:
        """Describe what was found; `query_positions` where queries are rows of the bank."""
        here = found.indices
        labels = self.labels_of(member, here)
        certainty = self.remembered_labels(member).certainty
        certainty = None if certainty is None else certainty.to(here.device)[here]
        own_opinion = None
        if spec.scope == "fold" and BASE in self.bank.keys:
            stored = self._beside(BASE, self.bank.keys[BASE], here)
            n_stored = stored.shape[1]
            known = labels < n_stored
            own_opinion = stored[here, labels.clamp_max(n_stored - 1)]
            neutral = -torch.log(torch.tensor(float(n_stored), device=here.device))
            own_opinion = torch.where(known, own_opinion, neutral)
        elif certainty is not None:
            own_opinion = torch.log(certainty)
        if query_positions is None:
            side = self.side(spec, member)
            reliability = self._beside(side, self.bank.keys[side], here)[:, 0][here]
        else:
            reliability = pair_reliability(
                here,
                self._beside(f"own {spec.name} {member}", self.own_neighbors(spec, member), here),
                self._beside(f"labels {member}", self.labels(member), here),
                query_positions.to(here.device),
            )
        weight = self.weight(here)
        return describe_neighborhood(
            found.distances,
            labels,
            reliability,
            base_log_proba,
            own_opinion,
            torch.log(weight),
            certainty,
        )


def measured(views: MemoryViews, spec: SpaceSpec) -> SpaceSpec:
    """Set the unit of a space to its median neighbor distance, over at most 1,000 rows."""
    rows = views.rows(spec, 0)
    some = rows[:: max(1, len(rows) // 1000)]
    keys = views.bank.keys[spec.key(0)][some]
    found = views.search(spec, 0, keys, spec.n_neighbors, views.bank.ids[some])
    positive = found.distances[found.distances > 0]
    unit = float(positive.median()) if len(positive) else 1.0
    return SpaceSpec(**(spec.to_json() | {"unit": unit}))


def note_reliability(views: MemoryViews, spec: SpaceSpec, n_members: int) -> None:
    """Store each row's reliability as a column of the bank."""
    bank = views.bank
    for member in range(n_members):
        if spec.scope == "fold":
            own = bank.keys[FOLD][:, :1] == member
            before = bank.keys.get(spec.side, torch.full((len(bank), 1), 0.5))
            bank.keys[spec.side] = torch.where(own, views.reliability(spec, member), before)
        elif spec.judged_in == spec.name and member in views.label_versions:
            bank.keys[views.side(spec, member)] = views.reliability(spec, member)


def _for_metric(index: IndexName, metric: Metric) -> IndexName:
    """Flat FAISS has one index for Euclidean metrics and one for inner products."""
    if not index.startswith("faiss-flat") or metric == "manhattan":
        return index
    return "faiss-flat-l2" if metric in ("euclidean", "sqeuclidean") else "faiss-flat-ip"
