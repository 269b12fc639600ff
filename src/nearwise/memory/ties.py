"""Which of equally near rows are found: those whose ids a hash puts first.

In the order of the rows instead, a table that is sorted by class would show the neighbors of one
class alone wherever more rows tie than are asked for, and a row that came later never.
"""

import numpy as np

_LOW, _FACTOR = 0xFFFFFFFF, 0x45D9F3B


def tie_ranks(ids: np.ndarray) -> np.ndarray:
    """Return a hash of each id, int64 of the shape of `ids`; of equally near rows the lowest wins.

    A one-to-one map of 32 bits, so that ids below 2^32 never tie again: two rounds of a shift and
    a multiplication, in the manner of MurmurHash3's last step (Appleby, 2011), which a database can
    compute, too.
    """
    mixed: np.ndarray = (ids ^ (ids >> 32)).astype(np.uint64) & np.uint64(_LOW)
    for _ in range(2):
        mixed = ((mixed >> np.uint64(16)) ^ mixed) * np.uint64(_FACTOR) & np.uint64(_LOW)
    return ((mixed >> np.uint64(16)) ^ mixed).astype(np.int64)


def tie_order(ids: np.ndarray) -> np.ndarray:
    """Return the positions (n,) of rows in the order in which equally near ones are found."""
    order: np.ndarray = np.argsort(tie_ranks(ids))
    return order


def tie_ranks_in_sql(column: str) -> str:
    """Write `tie_ranks` of a column of bigints in SQL."""
    mixed = f"(({column} # ({column} >> 32)) & {_LOW})"
    for _ in range(2):
        mixed = f"((({mixed} >> 16) # {mixed}) * {_FACTOR} & {_LOW})"
    return f"(({mixed} >> 16) # {mixed})"
