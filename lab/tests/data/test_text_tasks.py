"""Data of benchmarks/texts.py: downloaded where it is missing, checked, and read."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nearwise_lab.data.files import ChecksumError

ROOT = Path(__file__).parents[3]
SMS = b"Label\tSMS\nham\tSee you at noon\nspam\tWin a prize now\nham\tSee you at noon\n"


@pytest.fixture
def texts(monkeypatch, tmp_path):
    """The benchmark as a module, with an empty cache."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARWISE_DATA", raising=False)
    import texts as benchmark

    yield benchmark
    for name in ("texts", "embeddings", "keeping"):
        sys.modules.pop(name, None)


def offered(texts, monkeypatch, folder, sha256):
    """Offer the short messages at a local address."""
    (folder / "offered").write_bytes(SMS)
    file = texts.FILES["sms"]["rows"]
    at = replace(file, remote=(folder / "offered").as_uri(), sha256=(sha256,))
    monkeypatch.setitem(texts.FILES, "sms", {"rows": at})


def test_missing_texts_are_downloaded_once(texts, monkeypatch, tmp_path):
    offered(texts, monkeypatch, tmp_path, hashlib.sha256(SMS).hexdigest())
    X, y = texts.read_texts(None, "sms")
    assert X["text"].tolist() == ["See you at noon", "Win a prize now"]
    assert y.tolist() == ["ham", "spam"]
    (tmp_path / "offered").unlink()
    assert len(texts.read_texts(None, "sms")[1]) == 2


def test_other_texts_than_those_of_the_record_are_refused(texts, monkeypatch, tmp_path):
    offered(texts, monkeypatch, tmp_path, hashlib.sha256(b"other").hexdigest())
    with pytest.raises(ChecksumError, match="was changed"):
        texts.read_texts(None, "sms")


def test_the_table_of_films_has_one_text_and_ten_other_columns(texts, tmp_path):
    rows = {"show_id": ["s1", "s2", "s3"], "title": ["Up", "A b", "C"], "type": "Movie"}
    rows |= {"director": None, "country": "Peru", "rating": "PG", "duration": 90}
    rows |= {"cast": ["A, B", None, "C"], "date_added": [" May 2, 2020", None, "June 1, 2021"]}
    rows |= {"description": ["a", "b", "a"], "listed_in": ["Dramas, Cult", "Horror", "Dramas"]}
    (tmp_path / "texts").mkdir()
    table = pd.DataFrame(rows | {"release_year": 2019})
    table.to_csv(tmp_path / "texts" / "netflix_titles.csv", index=False)
    X, y = texts.read_texts(tmp_path, "netflix mixed")
    assert y.tolist() == ["Dramas", "Horror"]
    assert len(X.columns) == 11
    assert X["cast"].iloc[0] == 2 and X["month_added"].iloc[0] == 5
    assert texts.read_texts(tmp_path, "netflix columns")[0].columns.isin(X.columns).sum() == 10
    assert texts.read_texts(tmp_path, "netflix")[0].columns.tolist() == ["text"]
