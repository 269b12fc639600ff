"""Delimited text, with every number read to its last bit whatever the version of pandas."""

from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

# pandas reads floats exactly by default since 3.1, where naming the old switch warns
_EXACT: dict[str, Any] = (
    {}
    if tuple(int(part) for part in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)


def read_delimited(source: Path | BinaryIO, **options: Any) -> pd.DataFrame:
    """Call `pandas.read_csv` with `options`, floats parsed to the nearest double.

    Raises
    ------
    pandas.errors.ParserError, pandas.errors.EmptyDataError
        As `pandas.read_csv` does.
    """
    return pd.read_csv(source, **_EXACT, **options)
