"""Tie order of equally near rows: a hash of the id, lowest first.

In row order, a table sorted by class would return neighbors of one class alone whenever more rows
tie than are requested, and never a row that was added later.
"""

import numpy as np

_LOW, _FACTOR = 0xFFFFFFFF, 0x45D9F3B


def tie_ranks(ids: np.ndarray) -> np.ndarray:
    """Return a hash of each id, int64 of the shape of `ids`; of equally near rows the lowest wins.

    A one-to-one map of 32 bits, so that ids below 2^32 never tie again: two rounds of a shift and
    a multiplication, like MurmurHash3's last step (Appleby, 2011), that SQL can compute too.
    """
    mixed: np.ndarray = (ids ^ (ids >> 32)).astype(np.uint64) & np.uint64(_LOW)
    for _ in range(2):
        mixed = ((mixed >> np.uint64(16)) ^ mixed) * np.uint64(_FACTOR) & np.uint64(_LOW)
    return ((mixed >> np.uint64(16)) ^ mixed).astype(np.int64)


def tie_order(ids: np.ndarray) -> np.ndarray:
    """Return the positions (n,) of rows in tie order."""
    order: np.ndarray = np.argsort(tie_ranks(ids))
    return order


def tie_ranks_in_sql(column: str) -> str:
    """Return the SQL expression of `tie_ranks` for a column of bigints."""
    mixed = f"(({column} # ({column} >> 32)) & {_LOW})"
    for _ in range(2):
        mixed = f"((({mixed} >> 16) # {mixed}) * {_FACTOR} & {_LOW})"
    return f"(({mixed} >> 16) # {mixed})"
