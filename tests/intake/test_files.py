"""Every file becomes the table that its owner means, or an error that says what to do."""

import bz2
import gzip
import lzma
import pickle
from datetime import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nearwise.data import read_table
from tests.intake.files import archive, json_bytes, npz, npz_member, parquet, workbook

NAN = float("nan")
PLAIN = b"a,y\n1,u\n2,v\n"
PLAIN_VALUES = {"a": [1, 2], "y": ["u", "v"]}


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def read(folder, name, content, **options):
    """Write a file, read it, and return the table and the notes."""
    (folder / name).write_bytes(content)
    notes = []
    return read_table(folder / name, note=notes.append, **options), notes


# content of t.csv, what it must give, and the words of its note, if there is one; then name too
CSV = {
    "one row": (b"a,b\n1,2\n", {"a": [1], "b": [2]}),
    "one column": (b"a\n1\n2\n", {"a": [1, 2]}),
    "mark of UTF-8": (b"\xef\xbb\xbfa,b\n1,2\n", {"a": [1], "b": [2]}),
    "UTF-16": ("ä,b\n1,é\n".encode("utf-16"), {"ä": [1], "b": ["é"]}),
    "UTF-16 big-endian": (b"\xfe\xff" + "ä,b\n1,é\n".encode("utf-16-be"), {"ä": [1], "b": ["é"]}),
    "Latin-1": ("a,b\n1,é\n".encode("latin-1"), {"a": [1], "b": ["é"]}, "not UTF-8.*cp1252"),
    "cp1252": ("a,b\n1,€ “x”\n".encode("cp1252"), {"a": [1], "b": ["€ “x”"]}, "cp1252"),
    "semicolons": (b"a;b\n1;2\n", {"a": [1], "b": [2]}),
    "decimal comma": (
        b"a;b\n1,5;2\n-0,25;3\n", {"a": [1.5, -0.25], "b": [2, 3]}, "decimal comma: 'a'",
    ),
    "decimal comma and points at thousands": (
        b"a;b;c\n1.000,5;1.000;7\n2,5;2.500;8\n",
        {"a": [1000.5, 2.5], "b": [1000, 2500], "c": [7, 8]}, "decimal comma: 'a', 'b'",
    ),
    "decimal commas beside decimal points": (
        b"a;b\n1,5;1.125\n2,5;0.125\n", {"a": [1.5, 2.5], "b": [1.125, 0.125]}, "comma: 'a'",
    ),
    "quoted decimal comma": (
        b'a,b\n"1,5",2\n"0,75",3\n', {"a": [1.5, 0.75], "b": [2, 3]}, "decimal comma: 'a'",
    ),
    "thousands": (b'a,b\n"1,000",2\n12,3\n', {"a": [1000, 12], "b": [2, 3]}, "thousands: 'a'"),
    "thousands and decimals": (
        b"a;b\n1,000.5;2\n;3\n", {"a": [1000.5, NAN], "b": [2, 3]}, "thousands: 'a'",
    ),
    "either way, semicolons": (b"a;b\n1,234;2\n", {"a": [1.234], "b": [2]}, "decimal comma"),
    "either way, commas": (b'a,b\n"1,234",2\n', {"a": [1234], "b": [2]}, "thousands"),
    "either way, decided by another column": (
        b'a,b\n"1,234","1,5"\n', {"a": [1.234], "b": [1.5]}, "decimal comma: 'a', 'b'",
    ),
    "either way, decided by a decimal point": (
        b"a;b\n1,234;0.5\n", {"a": [1234], "b": [0.5]}, "thousands: 'a'",
    ),
    "one value is no number": (b"a;b\n1,5;2\nabout 2;3\n", {"a": ["1,5", "about 2"], "b": [2, 3]}),
    "codes and dates with points and commas stay text": (
        b"a;b;c\n01,02;01.02.2020;1.2.3\n03,04;31.12.2020;1.2.4\n",
        {"a": ["01,02", "03,04"], "b": ["01.02.2020", "31.12.2020"], "c": ["1.2.3", "1.2.4"]},
    ),
    "whole numbers with zeros in front are codes": (
        b"a,b,c\n01008,7,\n94105,007,02\n,10,?\n",
        {"a": ["01008", "94105", NAN], "b": ["7", "007", "10"], "c": [NAN, "02", NAN]},
        "1 cells hold only '\\?' and count as gaps: 'c'",
    ),
    "quoted codes after blanks": (
        b'a; b\n"00"; "12"\n"10"; "03"\n', {"a": ["00", "10"], "b": ["12", "03"]},
    ),
    "codes in a first row of their own": (b"a\n1\n02\n", {"a": ["1", "02"]}),
    "fractions with zeros in front are numbers": (
        b"a,b,c\n00.5,0,0.05\n01,10,100\n", {"a": [0.5, 1], "b": [0, 10], "c": [0.05, 100]},
    ),
    "a lone question mark": (
        b"a,b\n1,?\n?,x\n2.5,why?\n", {"a": [1, NAN, 2.5], "b": [NAN, "x", "why?"]},
        "2 cells hold only '\\?' and count as gaps: 'a', 'b'",
    ),
    "blanks after commas": (
        b"a, b\n1, x y\n2, ?\n", {"a": [1, 2], "b": ["x y", NAN]}, "1 cells hold only",
    ),
    "bars": (b"a|b\n1|2\n", {"a": [1], "b": [2]}),
    "broken bars are no delimiter": ("a¦b\n1¦2\n".encode(), {"a¦b": ["1¦2"]}),
    "tabs in a csv": (b"a\tb\n1\tx, y\n", {"a": [1], "b": ["x, y"]}),
    "blanks": (b"a b\n1 2\n", {"a": [1], "b": [2]}, "separated by blanks"),
    "two words are one column": (b"full name\nAda Byron\n", {"full name": ["Ada Byron"]}),
    "quoted newline": (b'a,b\n"x\ny",2\nz,3\n', {"a": ["x\ny", "z"], "b": [2, 3]}),
    "quoted newline in the header": (b'"a\nc",b\n1,2\n', {"a\nc": [1], "b": [2]}),
    "CRLF": (b"a,b\r\n1,2\r\n", {"a": [1], "b": [2]}),
    "CR only": (b"a,b\r1,2\r3,4\r", {"a": [1, 3], "b": [2, 4]}),
    "short lines": (
        b"a,b,c\n1,2,3\n4\n5,6\n", {"a": [1, 4, 5], "b": [2, NAN, 6], "c": [3, NAN, NAN]},
        "2 lines have fewer than 3 values .first: line 3",
    ),
    "gaps are no short lines": (b"a,b\n1,\n2,3\n", {"a": [1, 2], "b": [NAN, 3]}),
    "remarks at the top": (
        b"# made by a, b\n#\na,b\n1,2\n", {"a": [1], "b": [2]}, "left out 2 lines at the top",
    ),
    "names behind a #": (b"#a,b\n1,2\n", {"#a": [1], "b": [2]}),
    "infinity and nan": (b"a,b\ninf,nan\n-inf,1\n", {"a": [np.inf, -np.inf], "b": [NAN, 1]}),
    "beyond 64 bits": (b"a,b\n" + b"9" * 23 + b",1\n5,2\n", {"a": [1e23, 5.0], "b": [1, 2]}),
    "row numbers": (b",a,y\n0,1,2\n", {"Unnamed: 0": [0], "a": [1], "y": [2]}),
    "a blank name": (
        b"a,,c\n1,2,3\n", {"a": [1], "Unnamed: 1": [2], "c": [3]},
        "1 columns have no name.*'Unnamed: 1'",
    ),
    "a delimiter at the end of lines": (
        b"a,b,\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}, "without a name and without a value",
    ),
    "gzip named .csv": (gzip.compress(PLAIN), PLAIN_VALUES),
    "Excel named .csv, two sheets": (
        workbook([["a"], [1]], [["b"], [2]]), {"a": [1]},
        "first sheet, 'Sheet'; not read: 'Sheet1'",
    ),
    "JSON named .csv": (json_bytes([{"a": 1, "y": "u"}]), {"a": [1], "y": ["u"]}),
    "Parquet named .csv": (parquet(PLAIN_VALUES), PLAIN_VALUES),
}  # fmt: skip
READ = {case: ("t.csv", *row) for case, row in CSV.items()} | {
    "runs of blanks": (
        "t.txt", b" a   b\n 1.5  x\n", {"a": [1.5], "b": ["x"]}, "separated by blanks",
    ),
    "gzip": ("t.csv.gz", gzip.compress(PLAIN), PLAIN_VALUES),
    "gzip of tabs": ("t.tsv.gz", gzip.compress(b"a,b\ty\n1\tu\n"), {"a,b": [1], "y": ["u"]}),
    "bzip2": ("t.csv.bz2", bz2.compress(PLAIN), PLAIN_VALUES),
    "xz": ("t.csv.xz", lzma.compress(PLAIN), PLAIN_VALUES),
    "zstd": ("t.csv.zst", zstd(PLAIN), PLAIN_VALUES),
    "zip of one": ("t.zip", archive({"train.csv": PLAIN}), PLAIN_VALUES),
    "Excel": (
        "t.xlsx",
        workbook(
            [["a", "b", "y", "d"], [1, 2.5, "01", datetime(2020, 1, 2)], [2, "NA", "v", None]],
        ),
        {"a": [1, 2], "b": [2.5, NAN], "y": ["01", "v"], "d": [pd.Timestamp(2020, 1, 2), pd.NaT]},
    ),
    "JSON": (
        "t.json", json_bytes([{"a": 1, "y": "01"}, {"a": None, "y": "v", "z": True}]),
        {"a": [1, NAN], "y": ["01", "v"], "z": [NAN, True]},
    ),
    "JSON of columns": ("t.json", json_bytes({"a": [1, 2], "y": ["u", "v"]}), PLAIN_VALUES),
    "JSON as pandas writes it": (
        "t.json", pd.DataFrame(PLAIN_VALUES).to_json().encode(), PLAIN_VALUES,
    ),
    "JSON split": (
        "t.json", pd.DataFrame(PLAIN_VALUES).to_json(orient="split").encode(), PLAIN_VALUES,
    ),
    "JSON lines": ("t.jsonl", b'{"a": 1, "y": "u"}\n{"a": 2, "y": "v"}\n', PLAIN_VALUES),
    "JSON lines with line ends in a string": (
        "t.jsonl", '{"a": 1, "y": "u\u2028\x85"}\r\n{"a": 2, "y": "v"}'.encode(),
        {"a": [1, 2], "y": ["u\u2028\x85", "v"]},
    ),
    "JSON lines without a suffix": ("t", b'{"a": 1, "y": "u"}\n{"a": 2, "y": "v"}\n', PLAIN_VALUES),
    "Parquet": ("t.parquet", parquet(PLAIN_VALUES), PLAIN_VALUES),
    "Parquet of decimals": (
        "t.parquet", parquet({"a": [Decimal("1.5"), None], "y": [0, 1]}),
        {"a": [1.5, NAN], "y": [0, 1]},
    ),
    "Parquet of dates with a zone": (
        "t.parquet",
        parquet({"a": pd.to_datetime(["2020-01-01"]).tz_localize("Europe/Berlin"), "y": [0]}),
        {"a": [pd.Timestamp("2020-01-01", tz="Europe/Berlin")], "y": [0]},
    ),
    "npz of dates": (
        "t.npz", npz(X=np.zeros((2, 1)), d=np.array(["2020-01-01", "2021-01-01"], "datetime64[s]")),
        {"f0": [0, 0], "d": [pd.Timestamp("2020-01-01"), pd.Timestamp("2021-01-01")]},
    ),
    "npz of bytes": ("t.npz", npz(X=np.zeros((1, 1)), y=np.array([b"u"])), {"f0": [0], "y": ["u"]}),
    "npz float16": (
        "t.npz", npz(X=np.array([[NAN, 1]], np.float16), y=[0]), {"f0": [NAN], "f1": [1], "y": [0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_a_table_is_read_as_it_is_meant(tmp_path, case):
    name, content, expected, *words = READ[case]
    table, notes = read(tmp_path, name, content)
    pd.testing.assert_frame_equal(
        table, pd.DataFrame(expected), check_dtype=False, check_exact=True
    )
    for column in table:
        numbers = [type(v) in (int, float) for v in expected[column]]
        if all(numbers):
            assert pd.api.types.is_numeric_dtype(table[column]), column
    assert bool(notes) == bool(words)
    for said in words:
        with pytest.warns(UserWarning, match=said):
            read_table(tmp_path / name)


# content of t.csv and the words of the ValueError; then with a name
NO_CSV = {
    "empty": (b"", "is empty. Pass a table"),
    "white space": (b" \n\n", "is empty"),
    "names only": (b"a,b,c\n", "3 columns and 0 rows"),
    "repeated names": (b"a,a,y,b,b\n1,2,0,1,1\n", "column names 'a', 'b' occur more than once"),
    "UTF-16 without its mark": ("a,b\n1,2\n".encode("utf-16-le"), "NUL byte in line 1"),
    "UTF-16 cut": ("a,b\n1,2\n".encode("utf-16")[:-1], "begins like utf-16"),
    "NUL": (b"a,b\n1\0,2\n", "NUL byte in line 2.*Save it as UTF-8"),
    "no encoding": (b"a,b\n\x81\x8d,2\n", "neither UTF-8.*nor Western European"),
    "unclosed quote": (b'a,b\n"1,2\n', "quote that opens in row 1 never closes"),
    "long line": (
        b"a,b\n1,2\n1,2,3\n", "line 3 has 3 values separated by ',', and the first line 2",
    ),
    "all lines long": (b"a,b\n1,2,3\n4,5,6\n", "line 2 has 3 values"),
    "a remark without #": (b"|1x3 folds\n1, 2, x\n3, 4, y\n", "line 2 has 3 values.*mark remarks"),
    "too many columns": (b"a," * 100_001 + b"a\n1\n", "more than 100,000 columns"),
    "HTML": (b"<!DOCTYPE html><html>login</html>", "looks like an HTML page"),
    "pickle": (pickle.dumps({"a": [1]}), "looks like a Python pickle, which is never loaded"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid 1\n", "Git LFS pointer"),
    "an image": (b"\x89PNG\r\n\x1a\n", "looks like an image"),
    "tar": (b"a.csv".ljust(257, b"\0") + b"ustar" + bytes(250), "is a tar archive"),
}  # fmt: skip
REFUSED = {case: ("t.csv", *row) for case, row in NO_CSV.items()} | {
    "repeated names in Excel": (
        "t.xlsx", workbook([["a", "a"], [1, 2]]), "'a' occur more than once",
    ),
    "long line of blanks": (
        "t.txt", b"a b\n" + b"1 2\n" * 27000 + b"1 2 3\n", "27002 has 3 values separated by blanks",
    ),
    "an old Excel file": (
        "t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "old Excel file",
    ),
    "gzip cut": ("t.csv.gz", gzip.compress(PLAIN * 99)[:-9], "cannot be unpacked"),
    "bzip2 damaged": ("t.csv.bz2", bz2.compress(PLAIN)[:14] + b"x" * 40, "cannot be unpacked"),
    "xz cut": ("t.csv.xz", lzma.compress(PLAIN)[:-9], "cannot be unpacked"),
    "zstd damaged": ("t.csv.zst", zstd(PLAIN)[:6] + b"x" * 40, "cannot be unpacked"),
    "zip of two": (
        "t.zip", archive({"a.csv": PLAIN, "b.csv": PLAIN}), "archive of 2 files .a.csv, b.csv",
    ),
    "Excel that is none": (
        "t.xlsx", b"PK\x03\x04 garbage", "cannot be read as Excel: File is not a zip",
    ),
    "Excel of a zip": ("t.xlsx", archive({"a.txt": b"a", "b.txt": b"b"}), "zip archive of 2 files"),
    "Excel without a sheet": (
        "t.xlsx", archive({"xl/workbook.xml": b"<a/>"}), "cannot be read as Excel",
    ),
    "Excel with torn XML": (
        "t.xlsx", archive({"xl/workbook.xml": b"<a", "[Content_Types].xml": b"<a"}),
        "cannot be read as Excel",
    ),
    "Excel without rows": ("t.xlsx", workbook([]), "0 rows"),
    "JSON cut": ("t.json", b'[{"a": 1', "cannot be read as JSON"),
    "JSON number": ("t.json", b"5", "neither a list of objects"),
    "JSON lists": ("t.json", b"[[1, 2], [3, 4]]", "neither a list of objects"),
    "JSON uneven columns": ("t.json", b'{"a": [1, 2], "b": [1]}', "cannot be read as JSON"),
    "JSON scalars": ("t.json", b'{"a": 1, "b": 2}', "cannot be read as JSON"),
    "JSON nested": ("t.json", b'[{"a": [1, 2], "y": 0}]', "column 'a' holds lists or objects"),
    "JSON deep": ("t.json", b"[" * 100_000, "cannot be read as JSON"),
    "JSON in Latin-1": ("t.json", b'[{"a": "\xe9"}]', "cannot be read as JSON"),
    "JSON empty": ("t.json", b"[]", "0 rows"),
    "JSON repeated names": (
        "t.json", b'{"columns": ["a", "a"], "data": [[1, 2]]}', "occur more than once",
    ),
    "JSON lines of numbers": ("t.jsonl", b"1\n2\n", "JSON lines: line 1 is not an object"),
    "JSON lines cut": (
        "t.jsonl", b'{"a": 1}\n\n{"a"\n{"a": 3}\n', "line 3, character 5: Expecting",
    ),
    "Parquet garbage": ("t.parquet", b"PAR1 garbage", "cannot be read as Parquet"),
    "Parquet of no rows": ("t.parquet", parquet({"a": [], "y": []}), "2 columns and 0 rows"),
    "Parquet of no columns": ("t.parquet", parquet({}), "0 columns and 0 rows"),
    "Parquet cut": ("t.parquet", parquet(PLAIN_VALUES)[:-40], "cannot be read as Parquet"),
    "Parquet of text": ("t.parquet", PLAIN, "cannot be read as Parquet"),
    "Parquet of lists": (
        "t.parquet", parquet({"a": [[1], [2]], "y": [0, 1]}),
        "columns 'a' .list.*one number or text",
    ),
    "Parquet of bytes": ("t.parquet", parquet({"a": [b"x"], "y": [0]}), "columns 'a' .binary"),
    "npz of nothing": ("t.npz", b"PK\x05\x06" + bytes(18), "cannot be read as npz"),
    "npz of text": ("t.npz", PLAIN, "cannot be read as npz"),
    "npz of objects": ("t.npz", npz(X=np.array([{}], object)), "'X' holds Python objects"),
    "npz of a number": ("t.npz", npz(X=np.float64(1)), "is not a table: it holds {'X': \\(\\)}"),
    "npz structured": (
        "t.npz", npz(X=np.zeros(3, [("a", "f4"), ("b", "i4")])), "'X' holds .*one number or text",
    ),
    "npz complex": ("t.npz", npz(X=np.zeros((3, 2), complex)), "'X' holds complex128"),
    "npz 3-d": ("t.npz", npz(X=np.zeros((3, 2, 2)), y=np.zeros(3)), "is not a table"),
    "npz of other lengths": ("t.npz", npz(X=np.zeros((3, 2)), y=np.zeros(1)), "is not a table"),
    "npz negative": (
        "t.npz", npz_member({"descr": "<f8", "fortran_order": False, "shape": (-1, 2)}),
        "'X' declares",
    ),
    "npz of more than it holds": (
        "t.npz", npz_member({"descr": "<f8", "fortran_order": False, "shape": (10**15,)}),
        "holds 0 bytes",
    ),
    "npz with other files": (
        "t.npz", archive({"X.npy": b"", "read.me": b"hi"}), "cannot be read as npz",
    ),
    "npz with no header": ("t.npz", archive({"X.npy": b"what is this"}), "cannot be read as npz"),
    "npz cut": ("t.npz", npz(X=np.arange(999))[:-30], "cannot be read as npz"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_table_is_refused_with_the_reason(tmp_path, case):
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s){name}.*{message}"):
        read_table(tmp_path / name)


def test_10_000_columns_and_a_cell_of_5_MB_are_tables(tmp_path):
    names = [f"c{i}" for i in range(10_000)]
    wide = "\n".join([",".join(names), *[",".join(["1"] * 10_000)] * 3]).encode()
    table, notes = read(tmp_path, "wide.csv", wide)
    assert (table.shape, list(table.columns), notes) == ((3, 10_000), names, [])
    table, _ = read(tmp_path, "cell.csv", b"a,b\n" + b"x" * 5_000_000 + b",1\n")
    assert table["a"].str.len().tolist() == [5_000_000]


@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_the_extra_for_excel_is_named(tmp_path, monkeypatch, form):
    import sys

    (tmp_path / f"t.{form}").write_bytes(workbook([["a"], [1]]))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r"nearwise\[excel\]"):
        read_table(tmp_path / f"t.{form}")


WHOLE = ["Excel", "Parquet", "npz of dates", "gzip", "bzip2", "xz", "zstd", "zip of one", "JSON"]


@pytest.mark.parametrize("case", WHOLE)
def test_damaged_bytes_give_a_table_or_a_reason(tmp_path, case):
    """Nothing but a ValueError: not the errors of the libraries that parse the formats."""
    name, content, *_ = READ[case]
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 6)):
            damaged[place] = rng.integers(256)
        try:
            read(tmp_path, name, bytes(damaged), header=True)
        except ValueError as error:
            refused += 1
            assert name in str(error)
    assert refused
