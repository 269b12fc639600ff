"""Texts that are shown with rows: paths or URLs of pictures, links, or plain text."""

import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

Kind = Literal["picture", "link", "text"]
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)  # not the C: of a Windows path
_SERVER = ("//", "\\\\", "/\\", "\\/")  # Windows would sign in to the server of such a path


def kind_of(text: str) -> Kind:
    """Kind of a shown text; only http and https make a link.

    "picture": path or URL with the suffix of an image. "link": another URL. "text": anything else,
    such as ``javascript:`` and ``data:``.

    Examples
    --------
    >>> [kind_of(text) for text in ("cats/1.png", "https://example.org/a", "data:image/png")]
    ['picture', 'link', 'text']
    """
    scheme = _SCHEME.match(text.strip())
    if not text.strip().isprintable():
        return "text"
    if scheme is None:
        is_file = text.lower().endswith(PICTURE_SUFFIXES) and not text.startswith(_SERVER)
        return "picture" if is_file else "text"
    try:
        url = urlsplit(text)
    except ValueError:  # such as a bad IPv6 address
        return "text"
    if url.scheme not in ("http", "https") or not url.netloc or " " in text:
        return "text"
    return "picture" if url.path.lower().endswith(PICTURE_SUFFIXES) else "link"


def is_address(text: str) -> bool:
    """Whether a text is an http or https URL, of a picture or of anything else.

    Examples
    --------
    >>> [is_address(text) for text in ("https://example.org/1.png", "cats/1.png", "a text")]
    [True, False, False]
    """
    return kind_of(text) != "text" and _SCHEME.match(text.strip()) is not None


def picture_file(text: str) -> Path | None:
    """Path of a local image file; None for a URL, a link or other text."""
    is_file = kind_of(text) == "picture" and _SCHEME.match(text.strip()) is None
    return Path(text) if is_file else None


def check_texts(show: Any, n_rows: int, what: str = "show") -> np.ndarray | None:
    """Check the texts of rows, and return them as objects of type str; "" where there is none.

    Parameters
    ----------
    show : array-like of shape (n_rows,)
        Texts or paths; None, NaN or "" where there is none.
    n_rows : int
    what : str, default="show"
        Name of `show` in errors.

    Returns
    -------
    texts : object ndarray of shape (n_rows,), or None
        None if no row has a text.

    Raises
    ------
    ValueError
        If there is not one per row, or one is not text.
    """
    values = np.asarray(show, dtype=object)
    if values.ndim != 1 or len(values) != n_rows:
        found = len(values) if values.ndim == 1 else f"the shape {values.shape}"
        raise ValueError(
            f"X has {n_rows} rows but {what} has {found}. Give one text per row; None where there "
            "is none."
        )
    texts = np.array([_text(value, at, what) for at, value in enumerate(values)], dtype=object)
    return texts if any(texts) else None


def _text(value: Any, at: int, what: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        if pd.isna(text) is True:
            return ""
        raise ValueError(
            f"{what} holds {value!r} ({type(value).__name__}) in row {at}. Give texts: paths of "
            "image files, URLs or plain text; None where there is none."
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name in another encoding
        raise ValueError(
            f"{what} holds {text!r} in row {at}, which is not valid Unicode. Rename the file."
        ) from None
    return str(text)
