"""Read Arrow bytes that were damaged at random, by seed; count what was refused and what not.

A process of its own, as a fault in what is tested would end it.
"""

import decimal
import random
import sys

import numpy as np
import pandas as pd

from nearwise.estimators.storage.journaling import pack_table, unpack_table
from nearwise.estimators.stored.row_codec import RowCodec
from nearwise.memory.stores.disk import _pack_rows, _unpack_rows
from nearwise.memory.stores.protocol import Schema, SpaceSchema, StoredRows

N = 24
INTEGERS = [b"\0\0\0\x40", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff\xff\xff\x7f"]


def readers():
    """Stored bytes of each kind, with the function that reads them."""
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": draws.normal(size=N),
            "whole": np.arange(N),
            "text": [f"text {i}" * (i % 4) for i in range(N)],
            "gaps": ["a", None] * (N // 2),
            "kind": pd.Categorical(["x", "yy"] * (N // 2)),
            "day": pd.date_range("2020", periods=N),
            "period": pd.period_range("2020", periods=N, freq="D"),
            "yes": [True, False] * (N // 2),
            "decimal": [decimal.Decimal("1.5")] * N,
            "bytes": [b"ab"] * N,
            "none": [None] * N,
        }
    )
    arrays = draws.normal(size=(N, 3, 2)).astype(np.float32)
    schema = Schema({"features": SpaceSchema(3, "cosine")}, 2)
    rows = StoredRows(
        np.arange(N), np.arange(N) % 3, np.ones(N, np.float32),
        {"features": arrays[:, :, 0]}, arrays[:, 0], [bytes([i]) * i for i in range(N)],
    )  # fmt: skip
    found = [(_pack_rows(rows), lambda stored: _unpack_rows(stored, schema))]
    codec = RowCodec()
    for given in (frame, arrays):
        first, *others = codec.pack(given, None)
        found.append((pack_table(given), lambda stored: unpack_table(stored, N)))
        found.append((first, lambda stored, others=others: codec.unpack([stored, *others])[0]))
    return found


def damaged(content, draw):
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at = draw.randrange(len(content))
        if draw.random() < 0.5:
            content[at] ^= 1 << draw.randrange(8)
        else:
            at = at // 4 * 4
            content[at : at + 4] = draw.choice(INTEGERS)
    return bytes(content)


def use(rows):
    """Look at every cell."""
    if isinstance(rows, pd.DataFrame):
        for name in rows:
            rows[name].astype(str).str.upper()
    elif isinstance(rows, StoredRows):
        b"".join(rows.take(np.arange(0, len(rows), 2)).rows)
    else:
        rows.sum()


def main():
    draw, kinds, refused, read = random.Random(sys.argv[1]), readers(), 0, 0
    for _ in range(int(sys.argv[2])):
        content, reader = draw.choice(kinds)
        try:
            use(reader(damaged(content, draw)))
            read += 1
        except ValueError:
            refused += 1
    print(refused, read)


if __name__ == "__main__":
    main()
