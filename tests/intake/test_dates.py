"""Dates and times of day as people write them, those that are none, and gaps among them."""

import datetime
import json
import shlex

import numpy as np
import pandas as pd
import pytest

from nearwise.data import read_table
from nearwise.estimators import AttnKNNClassifier, report_columns
from nearwise.estimators.inputs.columns import plan_columns
from nearwise.estimators.inputs.table import TableEncoder
from tests.estimators.cases import reopened, same

DAYS = pd.Series(pd.date_range("2018-01-03", periods=120, freq="9D"))
MOMENTS = DAYS + pd.to_timedelta(np.arange(120) * 61, "min")

LAYOUTS = [
    "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%y",
    "%m-%d-%y", "%y-%m-%d", "%d.%m.%y", "%d-%b-%y", "%d-%b-%Y", "%d %b %y", "%b %d, %Y",
    "%d %B %Y", "%Y/%m/%d",
]  # fmt: skip
TIMES = [" %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p"]


def encoded(frame, columns=None):
    encoder = TableEncoder()
    return encoder, encoder.fit(frame, plan_columns(frame, columns)).numbers


def stored(encoder):
    return TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_days_in_any_usual_spelling_are_days_then_and_later(layout):
    frame = pd.DataFrame({"d": DAYS.dt.strftime(layout)})
    encoder, found = encoded(frame)
    assert same(found, encoded(pd.DataFrame({"d": DAYS}))[1])
    later = pd.DataFrame({"d": pd.Series(pd.to_datetime(["2019-02-01"])).dt.strftime(layout)})
    meant = pd.DataFrame({"d": ["2019-02-01"]})  # day and month of it alone cannot be told apart
    assert same(stored(encoder).transform(later).numbers, encoder.transform(meant).numbers)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("day", ["%d-%m-%Y", "%m/%d/%Y", "%Y-%m-%d"])
def test_moments_with_any_clock_are_moments(day, time):
    _, found = encoded(pd.DataFrame({"d": MOMENTS.dt.strftime(day + time)}))
    assert same(found, encoded(pd.DataFrame({"d": MOMENTS}))[1])


@pytest.mark.parametrize(
    ("end", "hours"), [("Z", 0), (" UTC", 0), ("+00", 0), ("+01:00", 1), ("-0500", -5), (" GMT", 0)]
)
def test_moments_with_a_zone_are_brought_to_utc(end, hours):
    for layout in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M"):
        frame = pd.DataFrame({"d": MOMENTS.dt.strftime(layout) + end})
        assert report_columns(frame)[0].use == "date", layout
        utc = MOMENTS.dt.tz_localize("UTC") - pd.Timedelta(hours=hours)
        assert same(encoded(frame)[1], encoded(pd.DataFrame({"d": utc}))[1])


@pytest.mark.parametrize("layout", ["%Y-%m", "%m/%Y", "%b-%y", "%b %Y", "%B %Y"])
def test_months_are_their_first_days(layout):
    months = DAYS.dt.to_period("M").dt.to_timestamp()
    _, found = encoded(pd.DataFrame({"d": DAYS.dt.strftime(layout)}))
    assert same(found, encoded(pd.DataFrame({"d": months}))[1])


def test_two_digits_are_years_from_1969_to_2068():
    _, found = encoded(pd.DataFrame({"d": ["31/12/68", "13/01/69", "14/02/99", "15/03/00"]}))
    assert found[:, 0].tolist() == [2068, 1969, 1999, 2000]


NO_DATES = {
    "codes": ["12-34", "99-01", "34-56"],
    "codes of three": ["12-34-56", "77-88-99", "01-02-03"],
    "versions": ["1.2.10", "1.3.11", "2.0.12"],
    "telephones": ["555-1234", "555-9876", "556-0001"],
    "scores": ["2:1", "3:0", "0:0"],
    "ratios": ["25:30", "90:15", "70:10"],
    "two ways": ["31/12/2020", "12/31/2020", "01/02/2020"],
    "parts": ["1234-56", "1801-77", "2020-99"],
    "seasons": ["2008-09", "2009-10", "2010-11"],
    "now": ["now", "today", "now"],
}


@pytest.mark.parametrize("case", NO_DATES)
def test_what_looks_like_a_date_and_is_none_stays_a_category(case):
    frame = pd.DataFrame({"d": NO_DATES[case] * 20})
    assert report_columns(frame)[0].use == "category"
    with pytest.raises(ValueError, match=r"not all values are dates.*'date:%d-%m-%y'"):
        report_columns(frame, {"d": "date"})


UNDECIDED = {
    "slashes": ("%m/%d/%Y", ["%d/%m/%Y", "%m/%d/%Y"]),
    "dashes": ("%d-%m-%Y", ["%d-%m-%Y", "%m-%d-%Y"]),
    "two digits": ("%m/%d/%y", ["%d/%m/%y", "%m/%d/%y"]),
    "with a clock": ("%m/%d/%Y %I:%M %p", ["%d/%m/%Y %I:%M %p", "%m/%d/%Y %I:%M %p"]),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_where_day_and_month_cannot_be_told_apart_the_error_has_the_flag(case, tmp_path, nearwise):
    layout, fitting = UNDECIDED[case]
    early = MOMENTS[MOMENTS.dt.day <= 12]
    frame = pd.DataFrame({"when": early.dt.strftime(layout), "y": [i % 2 for i in early.index]})
    report = report_columns(frame)[0]
    assert (report.use, report.change) == ("category", "date")
    wishes = " or ".join(f"columns={{'when': 'date:{one}'}}" for one in fitting)
    with pytest.raises(ValueError) as error:
        report_columns(frame, {"when": "date"})
    assert f"Name the format: {wishes}, or" in str(error.value)
    _, found = encoded(frame[["when"]], {"when": f"date:{layout}"})
    clock = early if "clock" in case else early.dt.normalize()
    assert same(found, encoded(pd.DataFrame({"when": clock.reset_index(drop=True)}))[1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = ("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", "--preset", "instant")
    flags = " or ".join(f"--date {shlex.quote(f'when={one}')}" for one in fitting)
    assert f"Name the format: {flags}, or" in nearwise(*run, "--date", "when").err
    done = nearwise(*run, "--date", f"when={layout}")
    assert done.exit_code == 0, done.err
    assert AttnKNNClassifier.load(tmp_path / "m").report_.columns == {"when": "date"}


FORMATS = {
    "whole numbers": ([20200131, 20210228, 20220331] * 9, "%Y%m%d"),
    "names of days": (["Fri 31 Jan 2020", "Sun 28 Feb 2021", "Thu 31 Mar 2022"] * 9, "%a %d %b %Y"),
    "years": (["2020", "2021", "2022"] * 9, "%Y"),
}


@pytest.mark.parametrize("case", FORMATS)
def test_a_format_reads_what_is_not_found_by_itself(case):
    values, layout = FORMATS[case]
    encoder, found = encoded(pd.DataFrame({"d": values}), {"d": f"date:{layout}"})
    assert set(found[:, 0]) == {2020, 2021, 2022}
    again = stored(encoder).transform(pd.DataFrame({"d": values[:2]})).numbers
    assert same(again, found[:2])


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("date:%Y-%d-%m", r"not all values are dates of this format, such as '2018-01-"),
        ("date:%Q", "is not a format"),
        ("data:%Y", r"Use one of .*, a format such as 'date:%d-%m-%y'"),
    ],
)
def test_a_format_that_does_not_fit_is_refused(wish, message):
    frame = pd.DataFrame({"d": DAYS.astype(str)})
    with pytest.raises(ValueError, match=message):
        report_columns(frame, {"d": wish})


GAPS = {
    "MySQL": ("0000-00-00", "%Y-%m-%d"),
    "MySQL, moments": ("0000-00-00 00:00:00", "%Y-%m-%d %H:%M:%S"),
    "a word": ("unknown", "%d-%m-%Y"),
    "a null": ("(null)", "%m/%d/%y"),
}


@pytest.mark.parametrize("case", GAPS)
def test_a_word_for_a_gap_leaves_dates_dates(case, tmp_path):
    word, layout = GAPS[case]
    texts = DAYS.dt.strftime(layout)
    texts[7] = word
    frame = pd.DataFrame({"d": texts, "x": np.arange(120) % 7})
    report = report_columns(frame)[0]
    assert (report.use, report.missing, report.gap_words) == ("date", 1, (word,))
    assert (
        f"1 of 120 cells hold text that counts as missing (first '{word}' in row 7" in report.reason
    )
    encoder, found = encoded(frame)
    np.testing.assert_array_equal(found, encoded(frame.assign(d=DAYS.mask(DAYS.index == 7)))[1])
    np.testing.assert_array_equal(stored(encoder).transform(frame).numbers, found)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert report_columns(read_table(tmp_path / "t.csv", note=lambda text: None))[0].use == "date"


def test_a_zero_date_is_a_gap_later_too():
    encoder, _ = encoded(pd.DataFrame({"d": DAYS.astype(str)}))
    with pytest.warns(UserWarning, match=r"none in training: d \(1\)"):
        found = encoder.transform(pd.DataFrame({"d": ["2020-01-01", "0000-00-00"]})).numbers
    assert np.isnan(found[1]).all() and not np.isnan(found[0]).any()


CLOCKS = {
    "hours and minutes": (["14:21", "00:05", "23:59"], [14.35, 1 / 12, 23 + 59 / 60]),
    "one digit": (["9:30", "14:00", "0:15"], [9.5, 14, 0.25]),
    "seconds": (["14:21:36", "00:00:36", "23:00:00"], [14.36, 0.01, 23]),
    "of twelve": (["2:21 PM", "12:00 AM", "12:30 pm"], [14.35, 0, 12.5]),
    "dotted": (["2:21 p.m.", "12:00 a.m.", "9:30 a.m."], [14.35, 0, 9.5]),
    "objects": (
        [datetime.time(14, 21), datetime.time(0, 0, 36), datetime.time(23)], [14.35, 0.01, 23],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLOCKS)
def test_times_of_day_are_hours(case):
    values, hours = CLOCKS[case]
    frame = pd.DataFrame({"t": values * 20})
    (report,) = report_columns(frame)
    assert (report.use, report.parts) == ("date", ("hour of day",))
    encoder, found = encoded(frame)
    assert encoder.numeric == ["t: hour of day"]
    np.testing.assert_allclose(found[:3, 0], hours)
    for other in CLOCKS.values():  # what is written otherwise is read as well
        later = stored(encoder).transform(pd.DataFrame({"t": other[0]})).numbers[:, 0]
        np.testing.assert_allclose(later, other[1])
    with pytest.raises(ValueError, match=r"now holds '25:00' in row 0 .* dates as 14:05"):
        encoder.transform(pd.DataFrame({"t": ["25:00"]}))


def test_a_model_of_times_and_dates_is_saved_and_refitted(tmp_path):
    frame = pd.DataFrame({"t": [datetime.time(i % 24, i % 60) for i in range(120)]})
    frame["d"] = DAYS.dt.strftime("%d-%m-%y")
    frame.loc[3, "d"] = "unknown"
    y = np.arange(120) % 24 > 11
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y)
    model.remove(np.flatnonzero(DAYS.dt.day > 12))  # what told day and month apart
    model.refresh()
    assert model.report_.columns == {"t": "date", "d": "date"}
    again = reopened(model, tmp_path / "m")
    assert same(again.predict_proba(frame), model.predict_proba(frame))
