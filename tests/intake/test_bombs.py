"""Small files that declare or unpack to gigabytes are refused before the memory is taken."""

import io
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.intake.files import archive, npz_member, workbook

ZEROS = bytes(60_000_000)
SOURCES = Path(__file__).parents[2] / "src"

# reads the files it is given; tells each error and by how many bytes memory grew
READER = """
import json, re, resource, sys
from nearwise.data.tables.files import read_table

def memory(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

limit = memory("VmSize") + 3 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    before = memory("VmRSS")
    try:
        said = str(read_table(path).shape)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([said, memory("VmHWM") - before]))
"""


def gzipped(content: bytes) -> bytes:
    squeeze = zlib.compressobj(1, wbits=31)
    return squeeze.compress(content) + squeeze.flush()


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def parquet_of_one_value(n_groups: int, value) -> bytes:
    stream, group = (
        io.BytesIO(),
        pa.table({"a": pa.array([value]).take(pa.array(np.zeros(10**6, int)))}),
    )
    with pq.ParquetWriter(stream, group.schema, compression="zstd") as writer:
        for _ in range(n_groups):
            writer.write_table(group)
    return stream.getvalue()


def parquet_of_one_text() -> bytes:
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, "int32")), ["x" * 1_000_000])
    stream = io.BytesIO()
    pq.write_table(pa.table({"a": text}), stream, compression="zstd", store_schema=False)
    return stream.getvalue()


def far_cells(n_rows: int) -> bytes:
    """A sheet whose rows hold one cell each, in the last column there is."""
    import zipfile

    parts = zipfile.ZipFile(io.BytesIO(workbook([["a"]])))
    members = {name: parts.read(name) for name in parts.namelist()}
    rows = "".join(f'<row r="{i}"><c r="XFD{i}"><v>1</v></c></row>' for i in range(1, n_rows + 1))
    sheet = "xl/worksheets/sheet1.xml"
    head, _, tail = members[sheet].partition(b'<row r="1">')
    members[sheet] = head + rows.encode() + tail.partition(b"</row>")[2]
    return archive(members)


def npz_of(n_declared: int, content: bytes) -> bytes:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_declared,)}
    return npz_member(header, content)


BOMBS = {
    "gzip.csv.gz": lambda: gzipped(ZEROS),
    "zip.zip": lambda: archive({"t.csv": ZEROS}),
    "zeros.npz": lambda: npz_of(len(ZEROS) // 8, ZEROS),
    "claims_4_GB.npz": lambda: npz_of(500_000_000, ZEROS[:40_000_000]),
    "claims_8_PB.npz": lambda: npz_of(10**15, b""),
    "rows.parquet": lambda: parquet_of_one_value(60, 7),
    "text.parquet": parquet_of_one_text,
    "cells.xlsx": lambda: far_cells(5_000),
}  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is told by /proc")
def test_bombs_are_refused_within_200_MB(tmp_path):
    for name, make in BOMBS.items():
        (tmp_path / name).write_bytes(make())
    paths = [str(tmp_path / name) for name in BOMBS]
    command = [sys.executable, "-c", READER, *paths]
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for path, (said, growth) in zip(paths, answers, strict=True):
        assert said.startswith(("ExpansionError", "ValueError")), said
        assert path in said
        assert growth < 2 * Path(path).stat().st_size + 200e6, (path, growth)
