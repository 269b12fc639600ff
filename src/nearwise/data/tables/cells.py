"""Original cells of a file, used if parsed values lose information."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

Cells = Callable[[Sequence[str]], pd.DataFrame]
"""Returns columns by name in their original form: text as written, "" for an empty cell; typed
values if the format has types."""

MISSING = (
    "", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None", "NaN", "nan",
    "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
)  # fmt: skip
"""Words for missing values: pandas' in CSV files, used for text cells of workbooks too."""

EXACT_BELOW = 2**53  # smaller integers are exact in float64
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_AS_PRINTED = re.compile(r"0|-?[1-9]\d*", re.ASCII)  # an integer in canonical form


def exact_wholes(values: Iterable[int | None], index: pd.Index) -> pd.Series | None:
    """Return integers with missing values as Int64 or UInt64; None beyond 64 bits."""
    cells = list(values)
    found = [cell for cell in cells if cell is not None]
    low, high = min(found, default=0), max(found, default=0)
    kind: Any = pd.Int64Dtype() if high < 2**63 else pd.UInt64Dtype()
    if low < (-(2**63) if high < 2**63 else 0) or high >= 2**64:
        return None
    return pd.Series(pd.array(cells, dtype=kind), index=index)


def with_exact_wholes(column: pd.Series, cells: Iterable[Any]) -> pd.Series:
    """Convert a float column exactly if all its `cells` are integers beyond float64.

    `cells` are text or values; missing values stay missing. Numbers beyond 64 bits stay text if
    different ones would be equal as floats.
    """
    gaps = column.isna().tolist()
    texts = [None if gap else str(cell).strip() for cell, gap in zip(cells, gaps, strict=True)]
    if not all(text is None or _WHOLE.fullmatch(text) for text in texts):
        return column
    exact = exact_wholes([None if text is None else int(text) for text in texts], column.index)
    if exact is not None:
        return exact if any(gaps) else pd.Series(exact.to_numpy(), index=column.index)
    merged = column.nunique() < len(set(texts) - {None})
    return pd.Series(texts, index=column.index, dtype=object) if merged else column


def beyond_float(column: pd.Series) -> bool:
    """Whether a float column has numbers too large to be exact integers."""
    if not pd.api.types.is_float_dtype(column.dtype):
        return False
    values = column.to_numpy(dtype=float, na_value=np.nan)
    return bool((np.abs(values[np.isfinite(values)]) >= EXACT_BELOW).any())


def as_written(column: pd.Series, cells: pd.Series) -> pd.Series:
    """Return a column in its original form: typed if the file has types, else text.

    `column` holds the parsed values, `cells` the original ones.
    """
    held = [None if gap else cell for cell, gap in zip(cells.tolist(), cells.isna(), strict=True)]
    kinds = {type(cell) for cell in held} - {type(None)}
    if kinds <= {int}:  # sheets have integers
        exact = exact_wholes(held, column.index)
        return column if exact is None else exact
    if kinds != {str}:
        return cells if (column.isna() != cells.isna()).any() else column
    printed = column.astype(object).map(str, na_action="ignore").fillna("")
    if (printed == cells).all():
        return column
    if all(cell == "" or _AS_PRINTED.fullmatch(str(cell)) for cell in held):
        exact = exact_wholes((int(cell) if cell else None for cell in held), column.index)
        if exact is not None:
            return exact
    return cells.where(cells != "", None)


def with_words(cells: pd.Series) -> pd.Series:
    """Return a column with NA and the like as words; only empty cells are missing."""
    return cells.astype(object).where(cells.notna() & (cells != ""), None)
