"""``add``, ``remove``, ``relabel``, ``undo``, ``history`` and ``compact``."""

import os

import pandas as pd
import pytest

from nearwise import AttnKNNRegressor
from nearwise.cli.commands import change
from nearwise.memory import JOURNAL


def facts_of(nearwise, model):
    return nearwise("inspect", model, "--json").json()


def history_of(nearwise, model):
    return nearwise("history", model, "--json").json()


def row(nearwise, model, number):
    (found,) = nearwise("inspect", model, "--rows", number, "--json").json()
    return found


@pytest.mark.parametrize("spelling", [str.upper, "{}  ".format], ids=["case", "blanks"])
def test_a_label_that_differs_only_in_case_or_blanks_is_refused(
    nearwise, tables, model, more, spelling
):
    rows = pd.read_csv(more)
    known = facts_of(nearwise, model)["classes"]
    rows["label"] = asked = rows["label"].map(spelling)
    rows.to_csv(more, index=False)
    for command, *given in (("add", more), ("evaluate", more), ("relabel", 5, asked[0])):
        refused = nearwise(command, model, *given)
        assert refused.exit_code == 2, command
        assert f"Did you mean {asked[0].strip().lower()!r}" in refused.err, command
    assert facts_of(nearwise, model)["classes"] == known and not history_of(nearwise, model)
    added = nearwise("add", model, more, "--new-classes")
    assert added.exit_code == 0 and "the new classes" in added.err
    assert "differ only in case or blanks" in " ".join(added.err.split())


@pytest.fixture
def more(tables, tmp_path):
    pd.read_csv(tables / "test.csv").head(3).to_csv(tmp_path / "more.csv", index=False)
    return tmp_path / "more.csv"


def test_every_change_is_listed_and_taken_back(nearwise, tables, model, more):
    before = nearwise("predict", model, tables / "new.csv", "--proba").out
    files = set(os.listdir(model))
    added = nearwise("add", model, more)
    assert added.exit_code == 0 and f"undo it: nearwise undo {model} 1\n" in added.err
    assert set(os.listdir(model)) - files <= {JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm"}
    removed = nearwise("remove", model, "0-2,160")
    assert removed.exit_code == 0 and "Removed 4 rows" in removed.err
    assert "now holds 159 rows" in removed.err
    old = row(nearwise, model, 5)["label"]
    other = next(c for c in facts_of(nearwise, model)["classes"] if c != old)
    assert nearwise("relabel", model, "5", other).exit_code == 0
    assert row(nearwise, model, 5)["label"] == other
    assert nearwise("undo", model, "3").exit_code == 0
    assert row(nearwise, model, 5)["label"] == old
    assert nearwise("undo", model, "2").exit_code == 0
    assert facts_of(nearwise, model)["rows"] == 163
    found = history_of(nearwise, model)
    listed = [(c["version"], c["change"], len(c["rows"]), c["undoes"]) for c in found]
    assert listed == [
        (1, "add", 3, None),
        (2, "remove", 4, None),
        (3, "relabel", 1, None),
        (4, "relabel", 1, 3),
        (5, "add", 4, 2),
    ]
    text = nearwise("history", model).out
    assert "relabel (undoes 3)" in text and "160-162" in text
    flat = " ".join(text.split())
    assert f"relabel: {old} to {other}" in flat
    assert [(found[2][key], found[3][key]) for key in ("former", "labels")] == [
        ([old], [other]),
        ([other], [old]),
    ]
    gone = nearwise("undo", model, "1")  # row 160 came back as another
    assert gone.exit_code == 2 and "no longer remembers 160" in gone.err
    assert nearwise("predict", model, tables / "new.csv", "--proba").out != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("remove", "999"), "999"),
        (("remove", "x"), "'x' is not a number"),
        (("relabel", "0", "maybe"), "'maybe' is not one of the classes no, yes"),
        (("undo", "7"), "has no change 7; its last is 0"),
    ],
    ids=str,
)
def test_mistakes_are_told_and_change_nothing(nearwise, model, arguments, message):
    command, *rest = arguments
    result = nearwise(command, model, *rest)
    assert result.exit_code == 2 and message in result.err
    assert history_of(nearwise, model) == []


def test_a_label_is_found_among_the_classes_as_in_files(nearwise, tables, tmp_path):
    rows = pd.read_csv(tables / "train.csv")
    target = rows.columns[-1]
    rows[target] = rows[target] == rows[target].iloc[0]
    rows.to_csv(tmp_path / "train.csv", index=False)
    model = tmp_path / "truth.model"
    fitted = nearwise(
        "fit", tmp_path / "train.csv", "--target", target, "--out", model, "--preset", "instant"
    )
    assert fitted.exit_code == 0
    before = row(nearwise, model, 0)["label"]
    assert nearwise("relabel", model, "0", str(not before).lower()).exit_code == 0
    assert row(nearwise, model, 0)["label"] is not before


def test_a_request_sent_twice_is_made_once(nearwise, model, more):
    assert nearwise("add", model, more, "--key", "monday").exit_code == 0
    second = nearwise("add", model, more, "--key", "monday")
    assert second.exit_code == 0 and "'monday' was made before, as change 1" in second.err
    assert "Added" not in second.err
    assert facts_of(nearwise, model)["rows"] == 163
    again = nearwise("remove", model, "0", "--key", "monday")
    assert again.exit_code == 2 and "used by another request, change 1 (add)" in again.err
    whole = nearwise("add", model, more, "--key", "tuesday", "--refresh")
    assert whole.exit_code == 2 and "--key names one change of the journal" in whole.err


def test_rows_that_are_remembered_already_are_counted_and_left_out_on_request(
    nearwise, tables, model, more, tmp_path
):
    assert "equal" not in nearwise("add", model, more, "--key", "first").err
    assert "equal" not in nearwise("add", model, more, "--key", "first").err
    pd.read_csv(tables / "test.csv").head(5).to_csv(tmp_path / "both.csv", index=False)
    left_out = nearwise("add", model, tmp_path / "both.csv", "--new-only")
    assert "Left out: 3 of 5 rows equal training rows." in left_out.err
    assert "Added 2 rows" in left_out.err
    nothing = nearwise("add", model, more, "--new-only")
    assert nothing.exit_code == 0 and "Left out: 3 of 3 rows" in nothing.err
    assert "Nothing was added." in nothing.err and facts_of(nearwise, model)["rows"] == 165
    again = nearwise("add", model, more)
    assert "note: 3 of 3 rows equal training rows" in again.err
    assert "--new-only leaves them out" in again.err and "Added 3 rows" in again.err
    repeats = nearwise("add", model, more)  # now remembered rows repeat, and new ones may
    assert "equal" not in repeats.err and facts_of(nearwise, model)["rows"] == 171


def test_compact_folds_changes_in_and_forgets_removed_rows(nearwise, tables, model, more):
    nearwise("add", model, more)
    nearwise("remove", model, "0")
    before = nearwise("predict", model, tables / "new.csv", "--proba").out
    result = nearwise("compact", model)
    assert (
        result.exit_code == 0 and "Compacted 2 changes" in result.err and "version 2" in result.err
    )
    assert nearwise("predict", model, tables / "new.csv", "--proba").out == before
    assert [c["version"] for c in history_of(nearwise, model)] == [1, 2]
    undone = nearwise("undo", model, "2")
    assert undone.exit_code == 2 and "forgets removed rows for good" in undone.err
    assert nearwise("undo", model, "1").exit_code == 0
    facts = nearwise("verify", model, "--json").json()
    assert facts["changes"] == {"in the journal": 3, "not compacted yet": 1}


@pytest.mark.parametrize("damage", ["missing", "empty", "damaged"])
def test_lost_changes_are_an_error_until_they_are_accepted(nearwise, model, damage):
    nearwise("remove", model, "0")
    assert "No changes of" in nearwise("compact", model, "--accept-lost-changes").err
    nearwise("remove", model, "1")
    journal = model / "journal.sqlite3"
    journal.unlink()
    if damage != "missing":
        journal.write_bytes(b"" if damage == "empty" else b"damaged" * 999)
    for command in (["verify"], ["history"], ["remove", "2"], ["compact"]):
        refused = nearwise(command[0], model, *command[1:])
        assert refused.exit_code == 2 and "compact MODEL --accept-lost-changes" in refused.err
    accepted = nearwise("compact", model, "--accept-lost-changes")
    assert accepted.exit_code == 0 and "is restored to its last saved state" in accepted.err
    assert facts_of(nearwise, model)["rows"] == 159 and history_of(nearwise, model) == []
    assert nearwise("remove", model, "2").exit_code == 0
    assert facts_of(nearwise, model)["rows"] == 158


def test_a_long_journal_is_folded_in_and_undo_still_works(nearwise, model, monkeypatch):
    monkeypatch.setattr(change, "_LONGEST_REPLAY", 2 * 158 / 1e6)
    nearwise("remove", model, "0")
    folded = nearwise("remove", model, "1")
    assert "Compacting 2 changes" in folded.err
    assert nearwise("undo", model, "1").exit_code == 0
    assert facts_of(nearwise, model)["rows"] == 159


def test_a_change_stands_where_folding_in_fails(nearwise, model, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(change, "_LONGEST_REPLAY", 0.0)
    monkeypatch.setattr("nearwise.estimators.stored.logs.save_model", full)
    result = nearwise("remove", model, "0")
    assert result.exit_code == 0 and "the change is made, but" in result.err
    assert facts_of(nearwise, model)["rows"] == 159


def test_a_model_without_changes_says_so(nearwise, model):
    result = nearwise("history", model)
    assert result.exit_code == 0 and "no changes are listed" in result.err


# --- numbers as targets -------------------------------------------------------------------------


@pytest.fixture
def prices(tables, tmp_path):
    """A model that predicts the height from width and color."""
    rows = pd.read_csv(tables / "train.csv").dropna(subset="height").head(60)
    model = AttnKNNRegressor(preset="instant", random_state=0)
    model.fit(rows[["width", "color"]], rows["height"]).save(tmp_path / "prices.model")
    return tmp_path / "prices.model"


@pytest.fixture
def later(tables, tmp_path):
    rows = pd.read_csv(tables / "test.csv").dropna(subset="height").head(3)
    rows[["width", "color", "height"]].to_csv(tmp_path / "later.csv", index=False)
    return tmp_path / "later.csv"


def targets(model):
    held = AttnKNNRegressor.load(model).memory_
    return dict(zip(held.ids.tolist(), held.columns["target"].tolist(), strict=True))


def test_rows_with_numbers_come_go_and_are_corrected(nearwise, prices, later):
    before = targets(prices)
    added = nearwise("add", prices, later)
    assert "Added 3 rows" in added.err and "now holds 63 rows" in added.err
    heights = pd.read_csv(later)["height"].tolist()
    assert [targets(prices)[i] for i in (60, 61, 62)] == heights
    assert "Labelled 2 rows 12.5" in nearwise("relabel", prices, "3,4", "12.5").err
    assert nearwise("relabel", prices, "5", "--", "-1e-3").exit_code == 0
    assert nearwise("remove", prices, "60-62").exit_code == 0
    assert targets(prices) == before | {3: 12.5, 4: 12.5, 5: -0.001}
    assert f"{before[5]} to -0.001" in " ".join(nearwise("history", prices).out.split())
    for version in ("2", "3"):
        assert nearwise("undo", prices, version).exit_code == 0
    assert targets(prices) == before
    assert nearwise("undo", prices, "4").exit_code == 0
    assert sorted(targets(prices).values()) == sorted([*before.values(), *heights])
    assert "Compacted 7 changes" in nearwise("compact", prices).err
    assert [change["version"] for change in history_of(nearwise, prices)] == list(range(1, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relabel", "0", "many"), "'many', which is no number"),
        (("relabel", "0", "12,5"), "'12,5', which is no number"),
        (("relabel", "0", "nan"), "'nan', which is no number"),
        (("relabel", "0", "--", "-inf"), "infinity"),
        (("relabel", "0", "1", "--forget-classes"), "no classes to forget"),
        (("remove", "0", "--forget-classes"), "no classes to forget"),
        (("move", "--out", "moved.model"), "Keep its memory in its own folder"),
    ],
    ids=str,
)
def test_mistakes_about_numbers_are_told_and_change_nothing(
    nearwise, prices, arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command, *rest = arguments
    result = nearwise(command, prices, *rest)
    assert result.exit_code == 2 and message in result.err
    assert history_of(nearwise, prices) == [] and not (tmp_path / "moved.model").exists()


@pytest.mark.parametrize("cell", ["many", "inf", ""], ids=repr)
def test_a_row_without_a_number_is_refused_with_all_others(nearwise, prices, later, cell):
    later.write_text(later.read_text() + f"0.5,red,{cell}\n")
    refused = nearwise("add", prices, later)
    assert refused.exit_code == 2 and history_of(nearwise, prices) == []
    assert (cell or "--skip-unlabelled") in refused.err


def test_known_rows_with_numbers_are_left_out_on_request(nearwise, prices, later, tmp_path):
    assert nearwise("add", prices, later, "--key", "first").exit_code == 0
    assert "was made before, as change 1" in nearwise("add", prices, later, "--key", "first").err
    nothing = nearwise("add", prices, later, "--new-only")
    assert "Left out: 3 of 3 rows" in nothing.err and len(targets(prices)) == 63
    whole = nearwise("add", prices, later, "--out", tmp_path / "larger", "--refresh")
    assert whole.exit_code == 0 and len(targets(tmp_path / "larger")) == 66


def test_lost_changes_of_numbers_are_an_error_until_they_are_accepted(nearwise, prices):
    before = targets(prices)
    nearwise("relabel", prices, "0", "99")
    (prices / JOURNAL).write_bytes(b"damaged" * 999)
    refused = nearwise("remove", prices, "2")
    assert refused.exit_code == 2 and "compact MODEL --accept-lost-changes" in refused.err
    assert "last saved state" in nearwise("compact", prices, "--accept-lost-changes").err
    assert targets(prices) == before
