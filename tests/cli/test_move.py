"""``move``, and the commands that take a model whose memory is in a store."""

import pandas as pd
import pytest

from nearwise.estimators.stored.memory import StoredMemory
from nearwise.memory.stores import StoredRows

pytest.importorskip("lance")


@pytest.fixture
def moved(nearwise, model, tmp_path):
    result = nearwise("move", model, "--out", tmp_path / "large.model")
    assert result.exit_code == 0 and "Moved 160 rows" in result.err
    return tmp_path / "large.model"


@pytest.fixture
def more(tables, tmp_path):
    pd.read_csv(tables / "test.csv").head(3).to_csv(tmp_path / "more.csv", index=False)
    return tmp_path / "more.csv"


def test_a_moved_model_answers_as_the_one_before(nearwise, tables, model, moved):
    options = ("--proba", "--sets", "--novelty", "--explain")
    before = nearwise("predict", model, tables / "new.csv", *options)
    after = nearwise("predict", moved, tables / "new.csv", *options)
    assert after.exit_code == 0 and after.out == before.out


def test_its_memory_is_changed_listed_and_compacted(nearwise, tables, moved, more):
    def facts():
        return nearwise("inspect", moved, "--json").json()

    assert facts()["rows"] == 160 and str(moved) in facts()["memory"]
    added = nearwise("add", moved, more)
    assert added.exit_code == 0 and "now holds 163 rows" in added.err
    assert f"undo it: nearwise undo {moved} 1\n" in added.err
    (row,) = nearwise("inspect", moved, "--rows", "160", "--json").json()
    first = pd.read_csv(more).iloc[0]
    assert (row["label"], row["width"]) == (first["label"], first["width"])
    label = next(iter(facts()["classes"]))
    assert nearwise("relabel", moved, "160", label).exit_code == 0
    assert nearwise("remove", moved, "161,162").exit_code == 0
    assert nearwise("undo", moved, "3").exit_code == 0
    answers = nearwise("predict", moved, tables / "new.csv", "--proba").out
    compacted = nearwise("compact", moved)
    assert compacted.exit_code == 0 and "Rewrote 163 rows" in compacted.err
    assert nearwise("predict", moved, tables / "new.csv", "--proba").out == answers
    listed = nearwise("history", moved, "--json").json()
    assert [one["change"] for one in listed] == ["add", "relabel", "remove", "add"]
    verified = nearwise("verify", moved, "--json")
    assert verified.exit_code == 0 and verified.json()["rows"] == 163


def test_verify_predicts_by_the_rows_of_the_store(nearwise, moved, monkeypatch):
    def break_off(self, *arguments):
        raise RuntimeError("of another width")

    monkeypatch.setattr(StoredMemory, "search", break_off)
    verified = nearwise("verify", moved)
    assert verified.exit_code == 2 and f"{moved}: predictions: of another width" in verified.err


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("evaluate", "MODEL", "MORE"), "in a store"),
        (("inspect", "MODEL", "--scores"), "in a store"),
        (("add", "MODEL", "MORE", "--refresh"), "in a store"),
        (("add", "MODEL", "MORE", "--capacity", "50"), "does not forget rows by itself"),
        (("move", "MODEL", "--out", "OTHER"), "in a store already"),
        (("inspect", "MODEL", "--rows", "999"), "does not remember 999"),
    ],
)
def test_what_a_memory_in_a_store_cannot_do_is_said(nearwise, moved, more, command, problem):
    words = {"MODEL": moved, "MORE": more, "OTHER": moved.parent / "other"}
    result = nearwise(*(words.get(word, word) for word in command))
    assert result.exit_code == 2 and problem in result.err
    assert nearwise("inspect", moved, "--json").json()["rows"] == 160


def test_verify_finds_a_damaged_byte_in_the_rows_and_says_what_it_checked(nearwise, moved):
    told = nearwise("verify", moved, "--json").json()
    assert "checksums of the rows' files" in told["checked"]
    assert "not checked" not in told
    (rows,) = moved.glob("rows/bulk-*/rows.lance/data/*.lance")
    whole = bytearray(rows.read_bytes())
    whole[len(whole) // 2] ^= 1
    rows.write_bytes(whole)
    verified = nearwise("verify", moved)
    assert verified.exit_code == 2 and "does not match its checksum" in verified.err
    assert nearwise("compact", moved).exit_code == 2  # which would give it a new checksum


def test_verify_counts_the_rows_of_each_class(nearwise, moved, monkeypatch):
    monkeypatch.setattr(StoredRows, "from_arrow", _with_another_label(StoredRows.from_arrow))
    verified = nearwise("verify", moved)
    assert verified.exit_code == 2 and "rows of the classes" in verified.err


def _with_another_label(read):
    def relabelled(table):
        rows = read(table)
        rows.labels[:1] ^= 1
        return rows

    return relabelled
