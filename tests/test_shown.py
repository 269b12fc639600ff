"""Kinds of texts that are shown with rows: only what is safe becomes a link or a picture."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearwise.shown import check_texts, kind_of, picture_file

KINDS = {
    "picture": ["cats/1.png", "/data/A B.JPEG", "C:\\photos\\1.jpg", "https://example.org/1.webp",
                "HTTP://example.org/1.gif?size=3"],
    "link": ["https://example.org/", "http://example.org/page.html#1.png"],
    "text": ["", "a sentence", "/etc/passwd", "1.svg", "javascript:alert(1)//1.png",
             " JavaScript:alert(1)", "java\nscript:alert(1).png", "data:image/png;base64,AA",
             "data:1.png", "file:///data/1.png", "ftp://example.org/1.png", "https:1.png",
             "https://[::1/1.png", "https://example.org/a b.png", "//server/share/1.png",
             "\\\\server\\share\\1.png"],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_only_image_suffixes_are_pictures_and_only_http_is_a_link(kind):
    assert {text: kind_of(text) for text in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)


def test_a_url_is_no_file():
    files = [text for texts in KINDS.values() for text in texts if picture_file(text) is not None]
    assert files == KINDS["picture"][:3]


@pytest.mark.parametrize("given", [
    ["a", None, "b.png"],
    np.array(["a", "", "b.png"]),
    pd.Series(["a", np.nan, "b.png"], index=[5, 3, 1]),
    pd.Series(["a", pd.NA, "b.png"], dtype="string"),
    ("a", "", Path("b.png")),
], ids=["list", "array", "series", "strings", "path"])  # fmt: skip
def test_texts_may_be_in_any_container(given):
    found = check_texts(given, 3)
    assert found.tolist() == ["a", "", "b.png"]
    assert {type(text) for text in found} == {str}
    assert check_texts([None, ""], 2) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "X has 3 rows but show has 1"),
        ([["a"], ["b"], ["c"]], r"show has the shape \(3, 1\)"),
        (Path("a.png"), r"show has the shape \(\)"),
        (["a", 5, None], r"show holds 5 \(int\) in row 1"),
        (["a", b"b", None], r"show holds b'b' \(bytes\) in row 1"),
        (["a", "\udcff.png", None], "not valid Unicode"),
    ],
)
def test_anything_but_one_text_per_row_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_texts(given, 3)
