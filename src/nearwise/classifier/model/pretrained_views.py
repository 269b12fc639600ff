"""The memory as input of the pretrained head, up to date with every change."""

from typing import Any

import torch
from torch import Tensor

from nearwise.classifier.model.log_linear_pool import with_new_classes
from nearwise.classifier.model.memory_views import FINDABLE, OPINION, MemoryViews, SpaceSpec
from nearwise.functional import Metric, Neighbors, pairwise_distances
from nearwise.nn import NeighborSet, RememberedSpace
from nearwise.nn.neighbor_set import OWN_NEIGHBORS, from_zero, typical_distance

_FEW = 8  # new rows that are measured one by one
_AT_ONCE = 2**24  # distances to new rows that are measured at once


class PretrainedViews(MemoryViews):
    """Describes neighborhoods for `PretrainedNeighborHead`.

    Two columns of the bank keep the nearest rows of each row, itself left out, in each space:
    "own.SPACE", int64 (n, m), their ids, and "apart.SPACE", (n, m), their distances in the
    space's unit. Rows that come or go change them where they matter, so that a folder holds what
    the model in use relies on.

    Parameters
    ----------
    n_columns : int
        Numbers and categories that a row has.
    *args, **options
        As of `MemoryViews`.
    """

    def __init__(self, n_columns: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.n_columns = n_columns

    def own_neighbors(self, spec: SpaceSpec) -> Tensor:
        """Positions of each row's own nearest rows, itself left out, (n, m)."""
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
        """Describe what was found; `query_positions` where queries are rows of the bank."""
        base = base_log_proba if OPINION in self.bank.columns else None
        log_weight = torch.log(self.weight(found.indices))
        certainty = self.remembered_labels.certainty
        if certainty is not None:
            log_weight = log_weight + torch.log(certainty[found.indices])
        return self.space(spec).describe(found, base, query_positions, log_weight)

    def space(self, spec: SpaceSpec) -> RememberedSpace:
        """Return what is known of the remembered rows of a space."""
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
        if FINDABLE in bank.columns:  # the others are stood for
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
        )

    # --- the columns ----------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return min(OWN_NEIGHBORS, len(self.rows()) - 1)

    def judge(self) -> None:
        """Note each row's own neighbors."""
        for spec in self.specs:
            self._note(spec)

    def columns_of_new(self, n_rows: int) -> dict[str, Tensor]:
        """Columns that `judge_new` fills for rows that are added."""
        kept = {name: self.bank.columns[name] for spec in self.specs for name in _columns(spec)}
        return {name: column.new_zeros(n_rows, column.shape[1]) for name, column in kept.items()}

    def judge_new(self, positions: Tensor, n_known: int) -> None:
        """Note the neighbors of rows that were added, and where they are those of others."""
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
                near, order = torch.cat([near, to_new], 1).topk(self._width, largest=False)
                theirs = torch.cat([theirs, ids[new].expand(len(before), -1)], 1).gather(1, order)
            own, apart = torch.cat([theirs, own[n_old:]]), torch.cat([near, apart[n_old:]])
            self.bank.columns |= dict(zip(_columns(spec), (own, apart), strict=True))
            self._note(spec, positions)

    def judge_relabelled(self, positions: Tensor) -> None:
        """Do nothing: what depends on labels is worked out from them when it is needed."""

    def judge_rest(self) -> None:
        """Search again for rows whose neighbors were removed."""
        for spec in self.specs:
            own = self.bank.columns[f"own.{spec.name}"]
            if own.shape[1] > self._width:
                self._note(spec)
                continue
            lost = ~torch.isin(own, self.bank.ids).all(1)
            self._note(spec, torch.nonzero(lost)[:, 0])

    def _note(self, spec: SpaceSpec, positions: Tensor | None = None) -> None:
        """Search for the neighbors of all rows, or of some, among all others, and keep them."""
        self._own.pop(spec.name, None)
        bank, names = self.bank, _columns(spec)
        if positions is not None and not len(positions):
            return
        keys, ids = bank.keys[spec.name], bank.ids
        if positions is not None:
            keys, ids = keys[positions], ids[positions]
        found = self.search(spec, keys, self._width, ids)
        for name, values in zip(names, (bank.ids[found.indices], found.distances), strict=True):
            if positions is not None:
                values = bank.columns[name].index_copy(0, positions, values)
            bank.columns[name] = values


def _distances(rows: Tensor, new: Tensor, metric: Metric) -> Tensor:
    """Distances of remembered rows to new ones; to a few without a product, which copies all."""
    if metric == "euclidean" and len(new) <= _FEW:
        direct = "donot_use_mm_for_euclid_dist"
        return torch.cdist(rows.float(), new.float(), compute_mode=direct)
    return pairwise_distances(rows, new, metric)


def _columns(spec: SpaceSpec) -> tuple[str, str]:
    return f"own.{spec.name}", f"apart.{spec.name}"
