"""What the indexes of a memory have learned, as parts of a model folder, and their checks."""

from typing import Any

import torch
from torch import Tensor

from nearwise.classifier.model.memory_views import MemoryViews
from nearwise.classifier.storage.stored_parts import part_of_folder, under
from nearwise.memory import MemoryBank
from nearwise.memory.index import IndexState

_ABSENT = -1  # in place of the cell of a row that came later
_WITH_CELLS = "ivf-flat"


def pack_indexes(views: MemoryViews) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take the indexes of a memory apart into JSON and tensors."""
    meta: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for space, state in views.index_states().items():
        cells = torch.full((len(views.bank),), _ABSENT, dtype=torch.int32)
        here = torch.isin(state.ids, views.bank.ids)
        cells[views.bank.positions(state.ids[here])] = state.cells[here]
        meta[space] = {"name": state.name, "n_fitted": state.n_fitted}
        arrays = {"cells": cells, **state.learned}
        tensors |= {f"index/{space}/{name}": array for name, array in arrays.items()}
    return meta, tensors


def unpack_indexes(
    meta: dict[str, Any], tensors: dict[str, Tensor], bank: MemoryBank
) -> dict[str, IndexState]:
    """Give what indexes have learned, by space, from what `pack_indexes` returned, checked."""
    states = {}
    for space, described in meta.get("indexes", {}).items():
        with part_of_folder(f"index/{space}"):
            arrays = under(tensors, f"index/{space}/")
            cells = arrays.pop("cells")
            _check(described, cells, arrays, len(bank), bank.keys[space].shape[1])
            here = cells != _ABSENT
            states[space] = IndexState(
                **described, ids=bank.ids[here], cells=cells[here], learned=arrays
            )
    return states


def _check(
    described: dict[str, Any], cells: Tensor, learned: dict[str, Tensor], n_rows: int, width: int
) -> None:
    """Refuse arrays that no index has, or that do not fit each other."""
    has_cells = described["name"] == _WITH_CELLS
    expected = {"centers"} if has_cells else set()
    if not expected <= {*learned} <= expected | ({"mean"} if has_cells else set()):
        raise ValueError(f"an index {described['name']!r} does not have the arrays {[*learned]}")
    for name, array in learned.items():
        n_dims = 2 if name == "centers" else 1
        if array.dtype != torch.float32 or array.ndim != n_dims or array.shape[-1] != width:
            raise ValueError(f"{name} is {array.dtype} of shape {tuple(array.shape)}")
    n_cells = len(learned["centers"]) if has_cells else 1
    if cells.dtype != torch.int32 or cells.shape != (n_rows,):
        raise ValueError(f"cells is {cells.dtype} of shape {tuple(cells.shape)}; {n_rows} rows")
    if len(cells) and not _ABSENT <= int(cells.min()) <= int(cells.max()) < n_cells:
        raise ValueError(f"cells holds values that are not from {_ABSENT} to {n_cells - 1}")
    if int((cells != _ABSENT).sum()) > described["n_fitted"]:
        raise ValueError(f"n_fitted is {described['n_fitted']}, and cells has more rows")
