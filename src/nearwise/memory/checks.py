"""Argument checks of the memory bank."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Soft labels made in float16 or by a chain of float32 products still pass.
_SUM_TOLERANCE = 1e-3
_SHOWN = 60  # characters of an argument in a message


def as_spaces(
    keys: Tensor | np.ndarray | Mapping[str, Tensor | np.ndarray], default: str
) -> dict[str, Tensor]:
    """Return named key spaces of equal length on one device, each (n, d), float and finite."""
    named = dict(keys) if isinstance(keys, Mapping) else {default: keys}
    if not named:
        raise ValueError("keys name no space. Pass a tensor or at least one named tensor.")
    spaces = {name: _as_keys(name, rows) for name, rows in named.items()}
    lengths = {name: len(rows) for name, rows in spaces.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The key spaces differ in length: {lengths}. Pass the same rows in each.")
    devices = {name: str(rows.device) for name, rows in spaces.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"The key spaces lie on several devices: {devices}. Move them to one.")
    return spaces


def _as_keys(name: str, rows: Tensor | np.ndarray) -> Tensor:
    if not isinstance(name, str) or not name:
        raise ValueError(f"A key space is named {name!r}. Use a string that is not empty.")
    tensor = as_tensor(rows).detach()
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise ValueError(
            f"keys of space {name!r} have shape {tuple(tensor.shape)}. "
            "Pass (n_rows, n_features) with at least one feature."
        )
    if tensor.dtype not in _FLOATS:
        raise ValueError(
            f"keys of space {name!r} have dtype {tensor.dtype}. "
            "Use float32, float64, bfloat16 or float16."
        )
    refuse_not_finite(f"keys of space {name!r}", tensor)
    return tensor


def as_tensor(values: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    """Return a tensor that shares memory with `values`, or a copy if they are read-only."""
    if hasattr(values, "to_numpy"):  # torch would index a Series by its labels
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # torch cannot mark a tensor as read-only
    return torch.as_tensor(values)


def refuse_not_finite(what: str, rows: Tensor) -> None:
    """Raise a ValueError that names the first row with NaN or infinity."""
    bad = ~torch.isfinite(rows)
    if bool(bad.any()):
        row = int(bad.reshape(len(rows), -1).any(1).nonzero()[0])
        raise ValueError(
            f"{what} hold NaN or infinity, first in row {row}. Impute or drop such rows."
        )


def same_widths(what: str, new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless `new` has the names and widths of `old`."""
    want = {name: tuple(rows.shape[1:]) for name, rows in old.items()}
    got = {name: tuple(rows.shape[1:]) for name, rows in new.items()}
    if want != got:
        raise ValueError(
            f"The new rows have {what} {got} (name: shape per row) and the memory bank {want}. "
            f"Pass the same {what}."
        )


def as_columns(
    columns: Mapping[str, Tensor] | None, n_rows: int, device: torch.device
) -> dict[str, Tensor]:
    """Return named columns on a device, each with one entry per row."""
    found = {name: column.detach().to(device) for name, column in (columns or {}).items()}
    for name, column in found.items():
        if column.ndim == 0 or len(column) != n_rows:
            raise ValueError(
                f"The column {name!r} has shape {tuple(column.shape)} for {n_rows} rows. Pass one "
                "entry per row."
            )
    return found


def as_labels(
    labels: Tensor | np.ndarray, n_rows: int, n_classes: int | None, device: torch.device
) -> tuple[Tensor, int]:
    """Return hard labels as int64 (n,) or soft ones as float (n, C), and the number of classes."""
    tensor = as_tensor(labels).to(device).detach().clone()
    if tensor.is_floating_point():
        return _as_soft(tensor, n_rows, n_classes)
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"labels have dtype {tensor.dtype}. Pass class positions as int64.")
    if tensor.shape != (n_rows,):
        raise ValueError(
            f"labels have shape {tuple(tensor.shape)} for {n_rows} rows. Pass ({n_rows},) class "
            f"positions, or float soft labels ({n_rows}, n_classes)."
        )
    tensor = tensor.long()
    low, high = (int(tensor.min()), int(tensor.max())) if n_rows else (0, -1)
    n_classes = high + 1 if n_classes is None else n_classes
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"labels lie in [{low}, {high}] but n_classes={n_classes}. "
            "Pass class positions from 0 to n_classes - 1, or a larger n_classes."
        )
    return tensor, n_classes


def _as_soft(labels: Tensor, n_rows: int, n_classes: int | None) -> tuple[Tensor, int]:
    if labels.ndim != 2 or len(labels) != n_rows or labels.shape[1] == 0:
        raise ValueError(
            f"soft labels have shape {tuple(labels.shape)} for {n_rows} rows. Pass "
            f"({n_rows}, n_classes) probabilities, or int64 class positions ({n_rows},)."
        )
    if n_classes is not None and labels.shape[1] != n_classes:
        raise ValueError(
            f"soft labels have {labels.shape[1]} columns but n_classes={n_classes}. "
            "Pass one column per class."
        )
    refuse_not_finite("soft labels", labels)
    labels = labels if labels.dtype == torch.float64 else labels.float()
    wrong = (labels < 0).any(1) | ((labels.sum(1) - 1).abs() > _SUM_TOLERANCE)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"soft labels of row {row} sum to {float(labels[row].sum()):.6g} with minimum "
            f"{float(labels[row].min()):.6g}. Each row must be non-negative and sum to 1."
        )
    return labels, labels.shape[1]


def as_ids(
    ids: Tensor | np.ndarray | Sequence[int],
    device: torch.device,
    n_rows: int | None = None,
    unique: bool = True,
) -> Tensor:
    """Return ids as int64 of shape (n,)."""
    try:
        tensor = as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):  # torch's, of text, gaps and ragged lists
        raise ValueError(
            f"ids are whole numbers (a bank's .ids lists them), not {_shortened(ids)}. Pass int64 "
            "of shape (n_ids,)."
        ) from None
    tensor = tensor.to(device).clone()
    if tensor.numel() == 0:
        tensor = tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(
            f"ids have dtype {tensor.dtype} ({_shortened(ids)}). Pass whole numbers, int64."
        )
    if tensor.ndim != 1 or (n_rows is not None and len(tensor) != n_rows):
        wanted = "(n_ids,)" if n_rows is None else f"({n_rows},): one id per row"
        raise ValueError(f"ids have shape {tuple(tensor.shape)}. Pass {wanted}.")
    tensor = tensor.long()
    if unique:
        values, counts = tensor.unique(return_counts=True)
        if len(values) < len(tensor):
            twice = int(values[counts > 1][0])
            raise ValueError(f"ids are not unique: {twice} appears more than once. Pass each once.")
    return tensor


def _shortened(values: object) -> str:
    shown = " ".join(repr(values).split())
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def as_sample_weight(
    weight: Tensor | np.ndarray | None, n_rows: int, device: torch.device
) -> Tensor:
    """Return sample weights as float32 of shape (n,), finite and non-negative."""
    if weight is None:
        return torch.ones(n_rows, device=device)
    tensor = as_tensor(weight).to(device).detach().float().clone()
    if tensor.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {tuple(tensor.shape)}. Pass ({n_rows},): one weight per row."
        )
    refuse_not_finite("sample weights", tensor)
    if bool((tensor < 0).any()):
        row = int((tensor < 0).nonzero()[0])
        raise ValueError(
            f"sample_weight of row {row} is {float(tensor[row]):.6g}. Pass values of at least 0."
        )
    return tensor


class UnknownIdError(ValueError):
    """An id that no row has."""


def find_ids(ids: Tensor | np.ndarray | Sequence[int], own: Tensor, what: str) -> Tensor:
    """Return the positions of `ids` in `own`; UnknownIdError names a missing one."""
    wanted = as_ids(ids, own.device, unique=False)
    in_order = bool((own[1:] > own[:-1]).all())
    ordered, order = (own, None) if in_order else own.sort()
    last = max(0, len(own) - 1)
    if len(own) and int(ordered[-1]) - int(ordered[0]) == last:  # ids are contiguous
        at = (wanted - ordered[0]).clamp(0, last)
    else:
        at = torch.searchsorted(ordered, wanted).clamp_max(last)
    found = ordered[at] == wanted if len(own) else torch.zeros_like(wanted, dtype=torch.bool)
    if not bool(found.all()):
        missing = wanted[~found]
        raise UnknownIdError(
            f"{len(missing)} of {len(wanted)} ids are not among the {len(own)} rows of the "
            f"{what}, first {int(missing[0])}. Pass ids that are there."
        )
    return at if order is None else order[at]


def refuse_taken(ids: Tensor, own: Tensor, what: str) -> None:
    """Raise a ValueError if one of `ids` is in `own`."""
    taken = torch.isin(ids, own)
    if bool(taken.any()):
        raise ValueError(
            f"{int(taken.sum())} ids are already in the {what}, first {int(ids[taken][0])}. "
            "Pass new ids, or none to get new ones."
        )
