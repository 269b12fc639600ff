"""Files as they come: bytes of tables that people and programs write."""

import io
import json
import zipfile

import numpy as np
import pandas as pd


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def parquet(columns) -> bytes:
    stream = io.BytesIO()
    pd.DataFrame(columns).to_parquet(stream, index=False)
    return stream.getvalue()


def npz_member(header: dict, content: bytes = b"", name: str = "X.npy") -> bytes:
    """An npz with one array whose header is forged."""
    text = repr(header).encode().ljust(117) + b"\n"
    return archive({name: b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content})


def archive(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def workbook(*sheets: list[list]) -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for rows in sheets:
        sheet = book.create_sheet()
        for row in rows:
            sheet.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def json_bytes(value) -> bytes:
    return json.dumps(value).encode()
