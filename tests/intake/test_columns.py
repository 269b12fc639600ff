"""What each column of a table is used as, what is left out, and that the program says so."""

import datetime
import json
import uuid
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from nearwise.cli.rows.column_options import column_lines
from nearwise.data.tables.files import read_table
from nearwise.estimators import ColumnReport, ColumnWarning, report_columns
from nearwise.estimators.inputs.table import TableEncoder
from tests.estimators.cases import CHEAP, attn_knn, reopened, same, sums_to_one

N = 120
RNG = np.random.default_rng(0)
SHUFFLED = RNG.permutation(N)
NOISE = RNG.normal(size=N)
DAYS = pd.Series(pd.date_range("2021-03-01", periods=N, freq="9D"))


def report_of(values, name="c", **wish):
    """Report of one column beside a plain number."""
    frame = pd.DataFrame({name: values})
    frame.insert(0, "x", NOISE[: len(frame)])
    return report_columns(frame, wish.get("columns"))[1]


# name, values, use, part of the reason
JUDGED = {
    "index that a CSV brings": ("Unnamed: 0", SHUFFLED, "left out", "row id by its name"),
    "index in order": ("Unnamed: 0", np.arange(N), "left out", "row id by its name"),
    "row numbers from 1": ("c", np.arange(1, N + 1), "left out", "row numbers: 1 to 120"),
    "row numbers of a part": ("c", np.arange(500, 500 + N), "left out", "row numbers: 500 to 619"),
    "ids by name": ("customer_id", SHUFFLED * 7 + 1000, "left out", "row id by its name"),
    "ids in camel case": ("customerId", SHUFFLED, "left out", "row id by its name"),
    "ids with a gap": ("ID", np.where(SHUFFLED == 3, np.nan, SHUFFLED), "left out", "row id"),
    "uuids": ("key", [str(uuid.UUID(int=i)) for i in SHUFFLED], "left out", "different in every"),
    "names": ("name", [f"Ann {i}" for i in SHUFFLED], "left out", "different in every row"),
    "names, two twice": (
        "name", [f"Ann {max(i, 2)}" for i in SHUFFLED], "left out", "nearly every row (118 in 120)",
    ),
    "ids of few rows": ("id", ["a", "b", "c", "d", "e"], "left out", "row id"),
    "measurements": ("c", NOISE, "number", ""),
    "measurements called id": ("id", NOISE, "number", ""),
    "whole measurements": ("salary", SHUFFLED * 13, "number", ""),
    "whole floats in order": ("c", np.arange(N) * 1.0, "number", ""),
    "counting down": ("c", np.arange(N)[::-1], "number", ""),
    "one value missing in order": ("c", np.delete(np.arange(N + 1), 60), "number", ""),
    "years in order": ("year", np.arange(1900, 1900 + N), "number", ""),
    "groups by id": ("customer_id", SHUFFLED % 40, "number", "an id by its name"),
    "an index of something": ("glycemic_index", SHUFFLED, "number", ""),
    "truth values": ("c", SHUFFLED % 2 == 0, "number", ""),
    "few rows in order": ("c", np.arange(5), "number", ""),
    "few texts": ("c", list("abcdefgh"), "category", ""),
    "towns": ("c", [f"town {i % 60}" for i in range(N)], "category", ""),
    "texts that are often missing": (
        "cabin", [f"C{i}" if i % 4 else None for i in range(N)], "category", "",
    ),
    "measurements as text": ("c", [f"{v:.6f}" for v in NOISE], "number", "a number in every row"),
    "codes as text": ("c", [f"{i:04d}" for i in SHUFFLED], "left out", "different in every row"),
    "digits as text": ("c", [str(i % 3) for i in range(N)], "category", "reads as numbers"),
    "days": ("c", DAYS, "date", ""),
    "days with a zone": ("c", DAYS.dt.tz_localize("Europe/Berlin"), "date", ""),
    "date objects": ("c", DAYS.dt.date, "date", ""),
    "periods": ("c", DAYS.dt.to_period("M"), "date", ""),
    "ISO text": ("c", DAYS.astype(str), "date", "a date in every row"),
    "ISO moments": ("c", DAYS.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), "date", "a date in every row"),
    "dotted days": ("c", DAYS.dt.strftime("%d.%m.%Y"), "date", "a date in every row"),
    "American days": ("c", DAYS.dt.strftime("%m/%d/%Y"), "date", "a date in every row"),
    "named months": ("c", DAYS.dt.strftime("%d %b %Y"), "date", "a date in every row"),
    "days or months": (
        "c", [f"{1 + i % 9}/{1 + i % 7}/2020" for i in range(N)], "category",
        "day and month cannot be told apart",
    ),
    "codes like days": ("c", [f"{2000 + i % 20}-{i % 4}7-77" for i in range(60)], "category", ""),
    "versions": ("c", [f"{i % 3}.{i % 5}.0" for i in range(N)], "category", ""),
    "eight digits": ("c", DAYS.dt.strftime("%Y%m%d").astype(int), "number", ""),
    "durations": ("c", pd.to_timedelta(SHUFFLED, unit="h"), "number", ""),
    "decimals": ("c", [Decimal(int(i)) / 8 for i in SHUFFLED], "number", ""),
    "gaps as question marks": (
        "c", [f"{v:.3f}" if i % 20 else "?" for i, v in enumerate(NOISE)], "number",
        "6 of 120 cells hold text that counts as missing (first '?' in row 0",
    ),
    "a slip among numbers": (
        "c", [f"{i % 9}" if i != 7 else "5,1 kg" for i in range(N)], "category",
        "numbers, but 1 of 120 cells hold text (first '5,1 kg' in row 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_a_column_is_used_as_its_owner_means_it(case):
    name, values, use, reason = JUDGED[case]
    report = report_of(values, name)
    assert report.use == use
    assert reason in report.reason and bool(reason) == bool(report.reason)
    assert bool(report.change) == bool(report.reason)


def test_codes_that_differ_in_every_row_can_be_numbers():
    codes = [f"{i:04d}" for i in SHUFFLED]
    assert report_of(codes).change == "number"  # as categories they would say nothing
    assert report_of(codes, columns={"c": "number"}).use == "number"


WISHES = {
    "kept ids": ("id", SHUFFLED, "keep", "number"),
    "kept names": ("name", [f"Ann {i}" for i in SHUFFLED], "keep", "category"),
    "kept number": ("x1", NOISE, "keep", "number"),
    "zip codes": ("zip", 10000 + SHUFFLED % 7, "category", "category"),
    "days as names": ("c", DAYS.astype(str), "category", "category"),
    "slips as gaps": ("c", ["1", "2", "x", "4"] * 30, "number", "number"),
    "asked for days": ("c", DAYS.astype(str), "date", "date"),
    "left out": ("c", NOISE, "left out", "left out"),
    "lists left out": ("c", [[1]] * N, "left out", "left out"),
}


@pytest.mark.parametrize("case", WISHES)
def test_columns_says_otherwise(case):
    name, values, wish, use = WISHES[case]
    assert report_of(values, name, columns={name: wish}).use == use


REFUSED = {
    "no such column": (
        {"zipp": "category"},
        "'zipp', and X has no such column. Did you mean 'zip'",
    ),
    "no such use": ({"zip": "categorie"}, "not known. Did you mean 'category'. Use one of 'keep'"),
    "no mapping": (["zip"], r"columns=\['zip'\] must be None or a mapping"),
    "no dates": ({"zip": "date"}, "'zip': 'date'}: not all values are dates, such as '1234'"),
    "days or months": (
        {"day": "date"},
        "cannot be told apart.*: columns={'day': 'date:%d/%m/%Y'} or columns={'day': 'date:%m/%d/",
    ),
    "dates as numbers": ({"when": "number"}, "the column holds dates"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wishes_that_cannot_be_fulfilled_are_named(case):
    columns, message = REFUSED[case]
    zips = ["1234", "99999", "A1"] * 10
    frame = pd.DataFrame({"zip": zips, "day": ["1/2/2020"] * 30, "when": DAYS[:30]})
    with pytest.raises(ValueError, match=message):
        report_columns(frame, columns)


def table(n=N, seed=0):
    """A label that follows a number and the weekday, beside an id and names; sorted by label."""
    rng = np.random.default_rng(seed)
    days = pd.Series(pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"))
    x = rng.normal(size=n)
    frame = pd.DataFrame({"id": np.arange(n) + 10_000 * seed, "x": x, "day": days})
    frame["name"] = [f"Ann {seed} {i}" for i in rng.permutation(n)]
    y = (x + (days.dt.day_of_week >= 5) + rng.normal(scale=0.2, size=n) > 0.4).astype(int)
    order = np.argsort(y, kind="stable")
    frame["id"] = frame["id"].to_numpy()[np.argsort(order)]  # ids tell the label
    return frame.iloc[order].reset_index(drop=True), y.iloc[order].to_numpy()


@pytest.fixture(scope="module")
def fitted():
    frame, y = table()
    with pytest.warns(
        ColumnWarning, match=r"Column 'id' is left out: a row id.*'name' is left out"
    ):
        model = attn_knn(**CHEAP).fit(frame, y)
    return model, frame, y


def test_nothing_is_learned_from_what_is_left_out(fitted):
    model, frame, _ = fitted
    assert model.report_.columns == {
        "id": "left out", "x": "number", "day": "date", "name": "left out",
    }  # fmt: skip
    other = frame.assign(id=frame["id"].to_numpy()[::-1], name="nobody")
    assert same(model.predict_proba(other), model.predict_proba(frame))
    assert same(model.predict_proba(frame[["day", "x"]]), model.predict_proba(frame))


def test_left_out_columns_stay_part_of_the_remembered_rows(fitted):
    model, frame, _ = fitted
    neighbor = model.explain(frame.iloc[[3]])[0].neighbors[0]
    row = frame.iloc[neighbor.id]
    assert (neighbor.row["id"], neighbor.row["name"]) == (row["id"], row["name"])


def test_an_array_may_lack_the_columns_that_are_left_out():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    frame.insert(2, "row_id", rng.permutation(80))
    model = attn_knn(**CHEAP).fit(frame, X[:, 0] > 0)
    assert same(model.predict_proba(X), model.predict_proba(frame))
    assert same(model.predict_proba(frame.to_numpy()), model.predict_proba(frame))
    with pytest.raises(ValueError, match=r"X has 3 features, .* expecting 5"):
        model.predict_proba(X[:, :3])


@pytest.mark.parametrize(
    ("values", "categories"),
    [
        ([1, "1", "a"], ["1", "a"]),
        (["1", "01", "a", 1], ["1", "01", "a"]),
        ([True, "True", "a"], ["True", "a"]),
        ([True, 1, 2], None),
        ([2**64, 2**64 + 2**20, 2**65], None),
    ],
    ids=str,
)
def test_values_of_several_types_are_saved_as_they_were_learned(values, categories, tmp_path):
    rng = np.random.default_rng(0)
    column = pd.Series([values[i] for i in rng.integers(0, len(values), 80)], dtype=object)
    frame = pd.DataFrame({"x": rng.normal(size=80), "c": column})
    model = attn_knn(**CHEAP).fit(frame, rng.integers(0, 2, 80))
    again = reopened(model, tmp_path / "model")
    assert same(again.predict_proba(frame), model.predict_proba(frame))
    found = model._predictor.encoder.categories.get("c")
    assert (found and sorted(found)) == (categories and sorted(categories))


def test_text_in_a_column_that_is_wanted_as_numbers_is_named():
    frame = pd.DataFrame({"x": np.arange(80) % 7, "c": ["1,5", "2.5", "3.0", "4"] * 20})
    with pytest.warns(ColumnWarning, match=r"20 of 80 cells hold text .*'1,5' in row 0"):
        attn_knn(**CHEAP, columns={"c": "number"}).fit(frame, np.arange(80) % 2)
    with pytest.raises(ValueError, match=r"no value reads as a number, such as 'soon'"):
        attn_knn(**CHEAP, columns={"c": "number"}).fit(frame.assign(c="soon"), np.arange(80) % 2)


def test_rows_without_left_out_columns_are_added_and_survive_saving(tmp_path):
    frame, y = table(60)
    model = attn_knn(**CHEAP).fit(frame, y)
    ids = model.add(frame[["x", "day"]][:3], y[:3])
    model.add(frame[:2], y[:2])
    again = reopened(model, tmp_path / "model")
    for one in (model, again):
        ((row, _),) = one._fitted.remembered(one.memory_.positions(ids[:1]).tolist())
        assert row["id"] is None and row["x"] == frame["x"][0]
        assert one._fitted.remembered([0])[0][0]["id"] == frame["id"][0]
    assert same(again.predict_proba(frame), model.predict_proba(frame))


def test_the_report_is_kept_with_the_model(fitted, tmp_path):
    model, frame, _ = fitted
    again = reopened(model, tmp_path / "model")
    assert again.report_.column_report == model.report_.column_report == report_columns(frame)
    day = model.report_.column_report[2]
    assert isinstance(day, ColumnReport) and day.parts == ("year", "month", "day of week", "days")
    assert json.loads(json.dumps(day.to_json()))["distinct"] == frame["day"].nunique()


def test_kept_ids_are_learned_from():
    frame, y = table(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ColumnWarning)
        model = attn_knn(**CHEAP, columns={"id": "keep", "name": "left out"}).fit(frame, y)
    assert model.report_.columns["id"] == "number"
    other = frame.assign(id=frame["id"].to_numpy()[::-1])
    assert not same(model.predict_proba(other), model.predict_proba(frame))


def test_arrays_keep_every_column():
    X = np.column_stack([np.arange(60), RNG.normal(size=60)]).astype(float)
    y = (X[:, 1] > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ColumnWarning)
        model = attn_knn(**CHEAP).fit(X, y)
    assert [one.use for one in model.report_.column_report] == ["number", "number"]
    with pytest.raises(ValueError, match="columns names columns of a DataFrame, and X is an array"):
        attn_knn(**CHEAP, columns={"x0": "category"}).fit(X, y)


def test_encoders_of_older_folders_still_open():
    frame = pd.DataFrame({"x": NOISE, "town": ["Rome", "Oslo"] * (N // 2)})
    encoder = TableEncoder()
    numbers = encoder.fit(frame).numbers
    state = encoder.to_json()
    for name in ("dates", "gap_words", "report"):
        del state[name]
    assert same(TableEncoder.from_json(state).transform(frame).numbers, numbers)


def test_the_report_of_what_is_no_table_is_refused():
    with pytest.raises(ValueError, match="X is a ndarray, which has no columns by name"):
        report_columns(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"Columns \['a'\] occur more than once"):
        report_columns(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_dates_become_numbers():
    days = pd.Series(pd.to_datetime(["2024-02-29 18:30", "2025-03-01 00:00", None]))
    encoder = TableEncoder()
    encoded = encoder.fit(pd.DataFrame({"d": days, "x": [1.0, 2.0, 3.0]}))
    assert encoder.numeric == [
        "d: year", "d: month", "d: day of week", "d: hour", "d: days", "x",
    ]  # fmt: skip
    expected = [[2024, 2, 3, 18.5, 18.5 / 24], [2025, 3, 5, 0, 366]]
    np.testing.assert_allclose(encoded.numbers[:2, :5], expected)
    assert np.isnan(encoded.numbers[2, :5]).all()
    assert encoder.has_gaps == [True, False, False, False, False, False]  # one column says so
    assert encoder.dense(encoded).shape == (3, 7)


def test_a_time_zone_is_that_of_training():
    here = DAYS.dt.tz_localize("Europe/Berlin") + pd.Timedelta(hours=5)
    encoder = TableEncoder()
    numbers = encoder.fit(pd.DataFrame({"d": here})).numbers
    there = pd.DataFrame({"d": here.dt.tz_convert("Asia/Tokyo")})
    assert same(encoder.transform(there).numbers, numbers)
    with pytest.raises(ValueError, match=r"'d' had a time zone in training and have none now"):
        encoder.transform(pd.DataFrame({"d": DAYS}))


BAD_DATES = {
    "no date": (["2024-01-01", "soon"], r"'day' held dates .* now holds 'soon' in row 1 \("),
    "a moving day": (["2024-01-01", "now"], r"'day' held dates .* now holds 'now' in row 1 \("),
    "no such day": (["2024-02-30", "2024-02-01"], r"now holds '2024-02-30' in row 0 \("),
    "a number": ([20240101, 20240102], r"now holds 20240101 in row 0 \("),
    "other layout": (["31.12.2024", "1.1.2025"], r"'31.12.2024' in row 0 .* dates as 2024-12-31"),
    "a zone": (["2024-01-01T00:00Z"] * 2, r"had no time zone in training and have one \(UTC\) now"),
}


@pytest.mark.parametrize("case", BAD_DATES)
def test_what_is_no_date_is_named_with_its_row(fitted, case):
    values, message = BAD_DATES[case]
    with pytest.raises(ValueError, match=message):
        fitted[0].predict(pd.DataFrame({"x": [0.0, 1.0], "day": values}))


@pytest.mark.parametrize("days", [[None, None], [np.nan, np.nan], ["", ""]], ids=str)
def test_missing_dates_are_gaps(fitted, days):
    days = [None if day == "" else day for day in days]
    with pytest.warns(UserWarning, match=r"none in training: day \(2\)"):
        assert sums_to_one(fitted[0].predict_proba(pd.DataFrame({"x": [0.0, 1.0], "day": days})))


def test_far_dates_are_dates_too(fitted):
    far = pd.DataFrame({"x": [0.0, 0.0], "day": ["9999-12-31", "1700-01-01"]})
    assert sums_to_one(fitted[0].predict_proba(far))


def test_words_for_gaps_are_gaps_then_and_later(tmp_path):
    frame, y = table(60)
    values = [f"{v:.3f}" for v in frame["x"]]
    values[5] = values[11] = "?"
    told = pd.DataFrame({"x": values, "z": frame["x"] ** 2})
    with pytest.warns(ColumnWarning, match=r"'x' is used as a number: 2 of 60 cells.*'?' in row 5"):
        model = attn_knn(**CHEAP).fit(told, y)
    holes = told.assign(x=pd.to_numeric(told["x"], errors="coerce"))
    clean = attn_knn(**CHEAP).fit(holes, y)
    assert same(model.predict_proba(told), clean.predict_proba(holes))
    assert same(reopened(model, tmp_path / "model").predict_proba(told),
                model.predict_proba(told))  # fmt: skip
    with pytest.raises(ValueError, match=r"now holds 'unknown' in row 1 \(counted from 0; 1 such"):
        model.predict(pd.DataFrame({"x": ["5.1", "unknown", "?"], "z": [0.0, 1.0, 2.0]}))


def test_a_slip_in_training_is_named_with_row_column_and_value():
    frame, y = table(60)
    values = frame["x"].round(3).astype(object)
    values[8] = "about 3"
    with pytest.warns(
        ColumnWarning,
        match=r"'x' is used as a category: numbers, but 1 of 60 cells hold text \(first 'about 3' "
        r"in row 8.*columns=\{'x': 'number'\}",
    ):
        attn_knn(**CHEAP).fit(pd.DataFrame({"x": values, "z": frame["x"] ** 2}), y)


def test_types_that_arrow_and_databases_bring_are_understood():
    frame, y = table(60)
    rich = pd.DataFrame(
        {
            "whole": frame["id"].astype("Int64").where(frame.index != 4) % 7,
            "amount": [Decimal(int(v * 100)) / 100 for v in frame["x"]],
            "took": pd.to_timedelta(np.arange(60) % 17, unit="h"),
            "born": [datetime.date(1980 + i % 30, 1 + i % 12, 1) for i in range(60)],
        }
    )
    model = attn_knn(**CHEAP).fit(rich, y)
    assert list(model.report_.columns.values()) == ["number", "number", "number", "date"]
    assert sums_to_one(model.predict_proba(rich))


def test_the_report_of_thousands_of_columns_is_short():
    frame = pd.DataFrame(np.arange(6_000.0).reshape(3, -1) % 7).add_prefix("c")
    frame = pd.concat([frame] * 10, ignore_index=True)
    frame.insert(0, "Unnamed: 0", np.arange(30))
    lines = column_lines(report_columns(frame), flags=True)
    assert len(lines) < 10
    assert lines[0] == "2001 columns: 1 left out, 2000 numbers."
    assert '--keep "Unnamed: 0"' in "\n".join(lines)


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    frame, y = table(80)
    frame.assign(zip=10000 + np.arange(80) % 3, y=y).to_csv(folder / "train.csv")
    return folder


FAST = ["--estimator", "none", "--cv", "2"]


def test_the_command_line_reports_keeps_and_inspects(csv, nearwise):
    done = nearwise(
        "fit", csv / "train.csv", "-t", "y", "-o", csv / "m", "--category", "zip", *FAST
    )
    assert done.exit_code == 0, done.err
    for part in (
        "6 columns: 3 left out, 1 number, 1 date, 1 category.",
        "(--keep id changes that)",
        '(--keep "Unnamed: 0" changes that)',
        "becomes year, month, day of week, days",
    ):
        assert part in done.err
    facts = json.loads(nearwise("inspect", csv / "m", "--json").out)
    assert facts["columns"]["zip"] == "category" and facts["columns"]["id"] == "left out"
    assert {"name": "zip", "use": "category"}.items() <= facts["column_report"][-1].items()
    assert "id\tleft out\t80\t\ta row id" in nearwise("inspect", csv / "m").out
    bare = read_table(csv / "train.csv")[["zip", "day", "x"]]
    bare.to_csv(csv / "bare.csv", index=False)
    short = nearwise("predict", csv / "m", csv / "bare.csv", "--proba")
    whole = nearwise("predict", csv / "m", csv / "train.csv", "--proba")
    assert (short.exit_code, short.err) == (0, "") and short.out == whole.out


FLAGS = {
    "unknown column": (["--keep", "idd"], "has no column 'idd'. Did you mean 'id'?"),
    "two uses": (["--keep", "id", "--category", "id"], "--keep and --category both name 'id'"),
    "no dates": (["--date", "name"], "not all values are dates"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_flags_that_cannot_be_followed_are_refused_before_the_fit(csv, nearwise, case):
    flags, message = FLAGS[case]
    done = nearwise("fit", csv / "train.csv", "-t", "y", "-o", csv / "none", *flags, *FAST)
    assert done.exit_code == 2 and message in done.err
    assert not (csv / "none").exists()


def test_flags_for_columns_are_refused_for_images(tmp_path, nearwise):
    (tmp_path / "images").mkdir()
    done = nearwise("fit", tmp_path / "images", "-o", tmp_path / "m", "--keep", "id")
    assert done.exit_code == 2 and "images have none" in done.err
