"""Numbers as people and programs write them, in tables of text and in files, now and later."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from nearwise.data import read_table
from nearwise.data.tables.numeric_columns import Written
from nearwise.estimators import AttnKNNClassifier, LiveModel, report_columns
from nearwise.estimators.inputs.columns import plan_columns
from nearwise.estimators.inputs.table import TableEncoder
from tests.estimators.cases import CHEAP, attn_knn, reopened, same

N = 60
RNG = np.random.default_rng(0)
CENTS = RNG.integers(100, 900_000, N)
THOUSANDS = "\u00a0"


def us(cents):
    return f"{cents / 100:,.2f}"


def eu(cents):
    return us(cents).replace(",", "#").replace(".", ",").replace("#", ".")


def indian(cents):
    lakhs, tail = divmod(int(cents), 1000)
    pairs = []
    while lakhs:
        lakhs, pair = divmod(lakhs, 100)
        pairs.insert(0, f"{pair:02d}" if lakhs else str(pair))
    return ",".join([*pairs, f"{tail:03d}" if pairs else str(tail)])


# how a number of cents is written, what it is then in text, and what the report says
SPELT = {
    "dollars": (lambda c: f"${us(c)} ", 100, "numbers with '$' and commas at thousands"),
    "dollars without thousands": (lambda c: f"${c}", 1, "numbers with '$'"),
    "euros in front": (lambda c: f"€ {eu(c)}", 100, "numbers with '€' and a decimal comma"),
    "euros behind": (lambda c: f"{eu(c)} EUR", 100, "numbers with 'EUR' and a decimal comma"),
    "a currency by its code": (lambda c: f"USD {us(c)}", 100, "numbers with 'USD' and commas"),
    "pounds, negative ones": (lambda c: f"-£{us(c)}", -100, "numbers with '£'"),
    "percent": (lambda c: f"{c / 1000}%", 1000, "numbers with '%'"),
    "percent behind a blank": (lambda c: f"{c / 1000} %", 1000, "numbers with '%'"),
    "kilometers": (lambda c: f"{c} km", 1, "numbers with 'km'"),
    "kilograms without a blank": (lambda c: f"{c}kg", 1, "numbers with 'kg'"),
    "months, one and more": (
        lambda c: f"{c % 9 + 1} month{'s' if c % 9 else ''}", None, "numbers with 'month'",
    ),
    "brackets": (
        lambda c: us(c) if c % 2 else f"({us(c)})", None, "at thousands and '()' at negative ones",
    ),
    "a true minus": (lambda c: f"\u2212{c}" if c % 3 else str(c), None, "'\u2212' at negative"),
    "no-break spaces": (lambda c: us(c).replace(",", THOUSANDS), 100, "blanks at thousands"),
    "thin spaces": (lambda c: eu(c).replace(".", "\u202f"), 100, "a decimal comma"),
    "blanks": (lambda c: us(c).replace(",", " "), 100, "blanks at thousands"),
    "apostrophes": (lambda c: us(c).replace(",", "'"), 100, "apostrophes at thousands"),
    "curly apostrophes": (lambda c: us(c).replace(",", "\u2019"), 100, "apostrophes at thousands"),
    "lakhs": (indian, 1, "commas at thousands"),
    "decimal commas": (lambda c: eu(c), 100, "a decimal comma"),
    "commas at thousands": (lambda c: f"{c:,}", 1, "commas at thousands"),
}  # fmt: skip


def meant(case):
    write, unit, _ = SPELT[case]
    special = {
        "months, one and more": CENTS % 9 + 1,
        "brackets": np.where(CENTS % 2, CENTS, -CENTS) / 100,
        "a true minus": np.where(CENTS % 3, -CENTS, CENTS),
    }
    return special[case] if unit is None else CENTS / unit, [write(c) for c in CENTS]


def encoded(frame, columns=None):
    encoder = TableEncoder()
    return encoder, encoder.fit(frame, plan_columns(frame, columns)).numbers


@pytest.mark.parametrize("case", SPELT)
def test_text_in_one_spelling_is_numbers_and_the_report_says_so(case):
    numbers, texts = meant(case)
    frame = pd.DataFrame({"c": texts})
    (report,) = report_columns(frame)
    assert (report.use, report.change) == ("number", "category")
    assert SPELT[case][2] in report.reason
    encoder, found = encoded(frame)
    np.testing.assert_allclose(found[:, 0], numbers)
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert same(again.transform(frame).numbers, found)
    one = again.transform(pd.DataFrame({"c": [texts[3], None]})).numbers[:, 0]
    np.testing.assert_allclose(one, [numbers[3], np.nan])
    assert same(again.transform(pd.DataFrame({"c": numbers})).numbers, found)


@pytest.mark.parametrize("case", SPELT)
def test_a_file_gives_the_same_numbers_as_text_does(case, tmp_path):
    numbers, texts = meant(case)
    table = pd.DataFrame({"c": texts, "x": RNG.integers(0, 9, N)})
    for name, options in (("comma", {}), ("semicolon", {"sep": ";"}), ("tab", {"sep": "\t"})):
        table.to_csv(tmp_path / f"{name}.csv", index=False, **options)
        frame = read_table(tmp_path / f"{name}.csv", note=lambda text: None)
        if (name, case) in (("semicolon", "commas at thousands"), ("tab", "commas at thousands")):
            continue  # 1,234 alone can be read both ways
        _, found = encoded(frame)
        np.testing.assert_allclose(found[:, 0], numbers)
        (report, _) = report_columns(frame)
        assert SPELT[case][2] in report.reason, name


CODES = {
    "a letter in front": ["A12", "A13", "B7"],
    "a letter behind": ["3B", "4B", "7B"],
    "a dash": ["12-34", "56-78", "90-12"],
    "zip codes": ["02139", "10001", "94105"],
    "zip codes of nine digits": ["02139-1234", "10001-0001", "94105-7777"],
    "Dutch zip codes": ["1012 AB", "3511 CE", "9712 GH"],
    "versions": ["1.2.3", "1.10.0", "2.0.1"],
    "telephones": ["555-1234", "(030) 1234", "+49 170 1234567"],
    "telephones in threes": ["601 234 567", "555 123 456", "700 800 900"],
    "postal codes with a blank": ["75 001", "12 345", "69 008"],
    "numbered": ["#1", "#2", "#3"],
    "footnotes": ["(1)", "(2)", "(3)"],
    "two units": ["5 km", "3 mi", "7 km"],
    "two currencies": ["$5", "€5", "$7"],
    "sizes": ["19M", "201k", "8.7M"],
    "ranges": ["1-5", "6-10", "11-20"],
    "bounds": ["<5", ">10", "5+"],
    "fractions": ["1/2", "3/4", "1/8"],
    "padded dollars": ["$007", "$008", "$010"],
    "streets": ["12 Main", "5 Elm", "7 Oak"],
    "both marks": ["1,5", "2.5", "3"],
    "screens": ["1920x1080", "800x600", "640x480"],
}


@pytest.mark.parametrize("case", CODES)
def test_codes_stay_categories(case, tmp_path):
    frame = pd.DataFrame({"c": CODES[case] * 10, "x": RNG.normal(size=30)})
    assert report_columns(frame)[0].use == "category"
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert report_columns(read_table(tmp_path / "t.csv"))[0].use == "category"


@pytest.mark.parametrize("texts", [["5 km", "3 mi"], ["$5", "€5"], ["5 kg", "5 g", "7"]], ids=str)
def test_different_units_are_never_brought_together(texts):
    frame = pd.DataFrame({"c": texts * 15})
    assert "numbers with different units: " in report_columns(frame)[0].reason
    with pytest.raises(ValueError, match=r"holds different units, such as .* to one unit first"):
        report_columns(frame, {"c": "number"})


def test_some_numbers_without_the_sign_are_taken_where_number_says_so():
    prices = ["0", "$4.99", "$0.99", "0", "1,200.5"] * 12
    frame = pd.DataFrame({"price": prices})
    (report,) = report_columns(frame)
    assert (report.use, report.change) == ("category", "number")
    assert "numbers, 24 with '$' and the others without" in report.reason
    (report,) = report_columns(frame, {"price": "number"})
    assert (report.use, report.missing, report.gap_words) == ("number", 0, ())
    assert "numbers with '$' and commas at thousands, 36 of 60 cells without it" in report.reason
    _, found = encoded(frame, {"price": "number"})
    assert found[:5, 0].tolist() == [0, 4.99, 0.99, 0, 1200.5]


def test_gaps_among_amounts_are_gaps_and_other_text_beyond_a_share_is_named():
    amounts = [f"${c}" for c in range(100, 300)]
    frame = pd.DataFrame({"c": ["n/a", "(null)", *amounts]})
    (report,) = report_columns(frame)
    assert report.use == "number" and report.gap_words == ("(null)", "n/a")
    (report,) = report_columns(pd.DataFrame({"c": [*amounts, "ask", "ask us"]}))
    assert "numbers, but 2 of 202 cells hold text (first 'ask' in row 200" in report.reason


# training column, its neighbor; later text and the number that it means
LATER = {
    "points at thousands": (["8.500", "1.200", "950"], ["3,5", "4,25", "2"], "9.750", 9750),
    "commas at thousands": (["8,500", "1,200", "950"], ["3.5", "4.25", "2"], "9,750", 9750),
    "a decimal comma": (["8,5", "1,25", "3"], ["3,5", "4,25", "2"], "9,750", 9.75),
    "whole numbers beside decimal commas": (
        ["85", "12", "950"], ["3,5", "1,5", "2,5"], "9.750", 9750,
    ),
    "whole euros": (["€ 8.500", "€ 950", "€ 12"], ["3", "4", "2"], "€ 1.234", 1234),
}  # fmt: skip


def test_whole_numbers_with_a_unit_follow_the_decimal_mark_of_their_table():
    frame = pd.DataFrame({"way": ["950 km", "12 km", "7 km"] * 9, "x": ["3,5", "1,5", "2"] * 9})
    encoder, _ = encoded(frame)
    later = pd.DataFrame({"way": ["8.500 km"], "x": ["3"]})
    assert encoder.transform(later).numbers.tolist() == [[8500, 3]]


@pytest.fixture(scope="module", params=LATER)
def later(request, tmp_path_factory):
    """A model of a file in one spelling, and a later text that does not tell it."""
    column, other, text, number = LATER[request.param]
    folder = tmp_path_factory.mktemp("later")
    frame = pd.DataFrame({"salary": column * 20, "hours": other * 20})
    frame["y"] = np.where(np.arange(N) % 3 == 0, "rich", "poor")
    frame.to_csv(folder / "train.csv", sep=";", index=False)
    rows = read_table(folder / "train.csv", note=lambda said: None)
    model = attn_knn(**CHEAP).fit(rows[["salary", "hours"]], rows["y"])
    model.save(folder / "model")
    (folder / "new.csv").write_text(f"salary;hours;y\n{text};3;rich\n{text};2;poor\n")
    meant = pd.DataFrame(
        {"salary": [float(number)] * 2, "hours": [3.0, 2.0], "y": ["rich", "poor"]}
    )
    meant.to_parquet(folder / "meant.parquet")
    return folder, text


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_later_file_is_read_as_the_training_file_was(later, nearwise, command):
    folder, _ = later
    options = ["--proba", "-q"] if command == "predict" else ["-q"]
    if command == "evaluate":
        options = ["--json", "-"]
    said, meant = (
        nearwise(command, folder / "model", folder / name, *options)
        for name in ("new.csv", "meant.parquet")
    )
    assert said.exit_code == meant.exit_code == 0, said.err
    if command == "evaluate":
        answers = [json.loads(one.out)["metrics"] for one in (said, meant)]
        assert answers[0] == answers[1]
    else:
        assert said.out == meant.out


def test_rows_are_added_as_the_training_file_was_written(later, nearwise):
    folder, _ = later
    for name, out in (("new.csv", "one"), ("meant.parquet", "other")):
        done = nearwise("add", folder / "model", folder / name, "-o", folder / out, "-q")
        assert done.exit_code == 0, done.err
    one, other = (AttnKNNClassifier.load(folder / name) for name in ("one", "other"))
    said, meant = (model._fitted.rows["salary"].astype(float) for model in (one, other))
    assert said.tolist() == meant.tolist()


def test_python_reads_a_later_file_by_the_model_or_refuses_it(later):
    folder, text = later
    model = AttnKNNClassifier.load(folder / "model")
    meant = model.predict_proba(pd.read_parquet(folder / "meant.parquet").drop(columns="y"))
    rows = read_table(folder / "new.csv", like=model)[["salary", "hours"]]
    assert same(model.predict_proba(rows), meant)
    words = pd.DataFrame({"salary": [text, text], "hours": ["3", "2"]})
    assert same(model.predict_proba(words), meant)  # as a row of the service is
    alone = read_table(folder / "new.csv", note=lambda said: None)[["salary", "hours"]]
    try:
        assert same(model.predict_proba(alone), meant)
    except ValueError as error:
        assert "read_table(path, like=model)" in str(error)


def test_a_table_with_both_decimal_marks_is_read_as_in_training(tmp_path, nearwise):
    lines = ["w;pop;place;y"]
    lines += [f"{c % 7},{c % 90 + 10};{c % 5}.{c};{'NA' if c % 2 else 'EU'};{c % 2}" for c in CENTS]
    data, folder = tmp_path / "t.csv", tmp_path / "model"
    data.write_text("\n".join(lines))
    run = ("fit", data, "-t", "y", "-o", folder, "--preset", "instant", "--keep-words", "place")
    assert nearwise(*run).exit_code == 0
    for command in ("predict", folder, data, "--copy", "w"), ("evaluate", folder, data):
        assert (done := nearwise(*command)).exit_code == 0, done.err
        assert "Missing values" not in done.err
    model = AttnKNNClassifier.load(folder)
    read = read_table(data, like=model, keep_words=["place"]).drop(columns="y")
    assert same(model.predict_proba(read), model.predict_proba(model._fitted.rows))


CONTRADICTIONS = {
    "a decimal point": ("salary;hours\n8.5;3,5\n", "'salary' held numbers with a decimal comma"),
    "points elsewhere": ("salary;hours\n8.500;3.5\n", "'hours' held numbers with a decimal comma"),
    "American": ('salary;hours\n"8,500.00";3\n', "now holds '8,500.00' in row 0"),
    "a currency": ("salary;hours\n€ 8.500;3\n", "now holds '€ 8.500' in row 0"),
    "a word": ("salary;hours\n8.500;3\nabout 9;3\n", "now holds 'about 9' in row 1"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_file_that_contradicts_the_training_file_is_refused(case, tmp_path, nearwise):
    frame = pd.DataFrame(
        {"salary": ["8.500", "1.200", "950"] * 20, "hours": ["3,5", "4,5", "2"] * 20}
    )
    frame["y"] = ["rich", "poor"] * 30
    frame.to_csv(tmp_path / "train.csv", sep=";", index=False)
    rows = read_table(tmp_path / "train.csv", note=lambda said: None)
    model = attn_knn(**CHEAP).fit(rows[["salary", "hours"]], rows["y"])
    model.save(tmp_path / "model")
    text, message = CONTRADICTIONS[case]
    (tmp_path / "new.csv").write_text(text)
    done = nearwise("predict", tmp_path / "model", tmp_path / "new.csv")
    assert done.exit_code == 2 and message in done.err, done.err
    assert "Write numbers as in training (1" in done.err
    with pytest.raises(ValueError, match="held numbers with a decimal comma in training"):
        model.predict(read_table(tmp_path / "new.csv", like=model))


UNITS = {
    "another unit": ("km", "55 mi"),
    "another currency": ("$", "€ 5"),
    "no percent sign": ("%", "0.95"),
}


@pytest.mark.parametrize("case", UNITS)
def test_another_unit_than_that_of_training_is_refused(case):
    sign, text = UNITS[case]
    frame = pd.DataFrame({"c": [f"{c} {sign}" for c in CENTS]})
    encoder, _ = encoded(frame)
    with pytest.raises(ValueError, match=r"'c' held numbers with .* in training and now holds"):
        encoder.transform(pd.DataFrame({"c": [text]}))


@pytest.mark.parametrize("sign", ["$", "km"])
def test_amounts_without_their_sign_are_those_with_it(sign):
    encoder, _ = encoded(pd.DataFrame({"c": [f"{c} {sign}" for c in CENTS]}))
    assert encoder.transform(pd.DataFrame({"c": ["12", f"12 {sign}"]})).numbers.tolist() == [
        [12],
        [12],
    ]


def test_text_becomes_numbers_before_rows_are_remembered_added_and_refitted(tmp_path):
    frame = pd.DataFrame({"price": [f"${us(c)}" for c in CENTS], "z": RNG.normal(size=N)})
    frame.loc[4, "price"] = "n/a"
    y = np.where(CENTS > 450_000, "dear", "cheap")
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y)
    ids = model.add(frame[:2], y[:2])
    model.refresh()
    again = reopened(model, tmp_path / "m")
    assert same(again.predict_proba(frame), model.predict_proba(frame))
    numbers = frame.assign(price=np.where(np.arange(N) == 4, np.nan, CENTS / 100))
    assert same(again.predict_proba(numbers), model.predict_proba(frame))
    row = again._fitted.remembered(again.memory_.positions(ids[:1]).tolist())[0][0]
    assert row["price"] == CENTS[0] / 100
    assert again.report_.written == model.report_.written != Written()


def test_a_live_model_and_its_journal_hold_the_numbers(tmp_path):
    frame = pd.DataFrame({"price": [f"{eu(c)} €" for c in CENTS]})
    y = np.where(CENTS > 450_000, "dear", "cheap")
    attn_knn(**CHEAP).fit(frame, y).save(tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        live.add(pd.DataFrame({"price": ["1.234,50 €"]}), ["cheap"])
        told = live.model.predict_proba(frame)
    with LiveModel(tmp_path / "m") as live:
        assert same(live.model.predict_proba(frame), told)
        assert live.model._fitted.rows["price"].iloc[-1] == 1234.5


def test_the_command_line_fits_what_is_written_with_signs(tmp_path, nearwise):
    frame = pd.DataFrame(
        {"price": [f"${us(c)}" for c in CENTS], "rate": [f"{c % 99}%" for c in CENTS]}
    )
    frame["kind"] = ["0", "$4.99", "$9"] * 20
    frame["y"] = np.where(CENTS > 450_000, "dear", "cheap")
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = nearwise(
        "fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", "--preset", "instant",
        "--number", "kind",
    )  # fmt: skip
    assert fit.exit_code == 0, fit.err
    for part in (
        "price  number",
        "'$' and commas at thousands",
        "numbers with '%'",
        "kind   number",
    ):
        assert part in fit.err
    done = nearwise("predict", tmp_path / "m", tmp_path / "t.csv")
    predicted = done.out.split()[1:]
    assert np.mean(np.array(predicted) == frame["y"]) > 0.9


def test_the_service_reads_text_as_the_training_file_was_written(later):
    from fastapi.testclient import TestClient

    from nearwise.estimators import LiveModel
    from nearwise.serve import Limits, Service, create_app

    folder, text = later
    meant = pd.read_parquet(folder / "meant.parquet").drop(columns="y").to_dict("records")
    app = create_app(Service(LiveModel(folder / "model"), Limits()), name="m", keys=(), hosts=None)
    with TestClient(app) as client:
        said, numbers, bad = (
            client.post("/predict", json={"rows": rows})
            for rows in ([{"salary": text, "hours": "3"}], meant[:1], [{"salary": "x", "hours": 3}])
        )
    assert said.status_code == numbers.status_code == 200, said.text
    assert said.json()["predictions"] == numbers.json()["predictions"]
    assert bad.status_code == 422 and "'salary' held numbers" in bad.text


SLIPS = {
    "one in ten thousand": ([*map(str, range(2_000, 7_000))] * 2, ["3.0M"], True),
    "one in two hundred": ([f"{c}" for c in range(100, 299)], ["about 5"], True),
    "one in a hundred": ([f"{c}" for c in range(100, 199)], ["about 5"], False),
    "of amounts": ([f"${c}" for c in range(100, 400)], ["free"], True),
    "errors of a spreadsheet": ([f"{c}" for c in range(55)], ["#DIV/0!", "#VALUE!", "\\N"], True),
    "many words": ([f"{c}" for c in range(80)], ["unknown"] * 20, False),
}


@pytest.mark.parametrize("case", SLIPS)
def test_a_rare_slip_among_numbers_is_a_gap_and_named(case, tmp_path):
    numbers, slips, used = SLIPS[case]
    texts = [*numbers[:7], *slips, *numbers[7:]]
    frame = pd.DataFrame({"c": texts})
    (report,) = report_columns(frame, {"c": "keep"})
    assert report.use == ("number" if used else "category")
    if not used:
        return
    assert f"{len(slips)} of {len(texts)} cells hold text" in report.reason
    assert f"first {slips[0]!r} in row 7" in report.reason
    assert (report.missing, set(report.gap_words)) == (len(slips), set(slips))
    encoder, found = encoded(frame)
    assert np.flatnonzero(np.isnan(found[:, 0])).tolist() == list(range(7, 7 + len(slips)))
    with pytest.raises(ValueError, match="now holds 'other' in row 1"):  # not learned as a gap
        encoder.transform(pd.DataFrame({"c": [numbers[0], "other"]}))
    frame.assign(x=1).to_csv(tmp_path / "t.csv", index=False)
    read = read_table(tmp_path / "t.csv", note=lambda said: None)
    assert report_columns(read)[0].use == "number"


@pytest.mark.parametrize(
    ("written", "example"),
    [
        (["$1,200.50", "$900.25"], "$1,234.5"),
        (["95%", "5.5%"], "12.5%"),
        (["5 km", "7 km"], "12 km"),
    ],
)
def test_the_number_that_a_refusal_shows_is_written_as_the_column_is(written, example):
    X = pd.DataFrame({"amount": written * 20, "other": range(40)})
    model = attn_knn(**CHEAP).fit(X, ["a", "b"] * 20)
    with pytest.raises(ValueError, match=re.escape(f"Write numbers as in training ({example})")):
        model.predict(pd.DataFrame({"amount": ["12 apples"], "other": [1]}))
