"""What notebooks show of numbers: the digits that the data have, and the distribution."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nearwise.html.numbers import decimals, distribution, number
from tests.estimators.numbers.cases import fitted, fresh, table
from tests.html.test_rendering import own_part

HOSTILE = "<script>alert('x')</script>"


@pytest.mark.parametrize(
    ("value", "n", "shown"),
    [
        (151.0, None, "151"),
        (512.5, None, "512.5"),
        (1234567.0, None, "1234567"),
        (123456.79, None, "123456.79"),
        (0.1 + 0.2, None, "0.3"),
        (-0.04, 1, "0.0"),
        (12.345, 1, "12.3"),
        (3075000.4, 0, "3075000"),
        (1e20, 2, "1e+20"),
        (float("nan"), None, "nan"),
    ],
)
def test_numbers_have_as_many_digits_as_are_known(value, n, shown):
    assert number(value, n) == shown


@pytest.mark.parametrize(
    ("targets", "interval", "n"),
    [
        ((15.0, 9.0), (7.9, 16.5), 1),  # counts: one digit more
        ((475.0, 512.5), (205.0, 916.0), 0),  # a hundredth of the interval is 7
        ((0.53652, 0.60887), (0.262, 0.823), 3),
        ((2.0, 2.0), (2.0, 2.0), 1),  # an interval without width
        ((1 / 3, 1e-9), (1e-9, 1e-9), 12),
    ],
)
def test_an_answer_has_the_digits_that_its_interval_and_the_targets_justify(targets, interval, n):
    neighbors = [SimpleNamespace(target=one) for one in targets]
    assert decimals(SimpleNamespace(neighbors=neighbors, interval=interval)) == n


def test_bars_hold_the_distribution_the_interval_and_all_targets():
    X, _ = table()
    for found in fitted().explain(X[120:130], 6):
        chart, bars = distribution(found)
        assert 0.99 <= sum(share for *_, share in bars) <= 1
        for low, high, share in bars[::7]:
            ends = found.distribution.cdf(np.array([[low, high]]))[0]
            assert share == pytest.approx(ends[1] - ends[0])
        shown = [*found.interval, found.prediction, *(one.target for one in found.neighbors)]
        assert chart.x[0] < min(shown) and max(shown) < chart.x[1]


def test_a_target_that_is_often_zero_has_its_bar():
    X, y = table()
    model = fresh().fit(X[:120], np.maximum(y[:120], 0.0))
    found = min(model.explain(X[120:]), key=lambda one: one.prediction)
    _, bars = distribution(found)
    at_zero = sum(share for low, high, share in bars if low <= 0 < high)
    assert at_zero >= 0.9 * found.distribution.cdf(np.array([[0.0]]))[0, 0]


def test_an_explanation_shows_its_number_and_the_rows_behind_it():
    X, _ = table()
    (found,) = fitted().explain(X[120:121], 4)
    shown, n = found._repr_html_(), decimals(found)
    assert f"<strong>{found.target} = {number(found.prediction, n)}</strong>" in shown
    for one in found.neighbors:
        row = re.search(rf'<tr><th scope="row">{one.id}</th>.*', shown)[0]
        assert f'<td class="number">{number(one.target)}</td>' in row
        assert number(one.prediction_without, n) in row
        assert number(one.interval_without[1], n) in row
    assert shown.count("<circle") == 4


def test_a_model_shows_what_it_remembers_and_one_that_is_not_fitted_its_parameters():
    model, targets = fitted(), table()[1][:120]
    shown = model._repr_mimebundle_()["text/html"]
    assert "120 rows" in shown and number(targets.min()) in shown and number(targets.max()) in shown
    assert "CRPS" in shown and "nan" not in shown
    plain = fresh(settings={"calibration": None})._repr_mimebundle_()["text/html"]
    assert "120 rows" in plain and "CRPS" not in plain and "nan" not in plain
    assert "preset" in type(model)()._repr_mimebundle_()["text/html"]


def test_nothing_that_a_cell_or_name_holds_becomes_markup():
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "<b>", "c"])
    frame["note"] = np.where(np.arange(len(X)) % 3 == 0, HOSTILE, "plain")
    model = fresh().fit(frame[:120], pd.Series(y[:120], name="<i>price</i>"))
    (found,) = model.explain(frame[120:121], 4)
    for shown in (found._repr_html_(), own_part(model._repr_mimebundle_()["text/html"])):
        assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown
    assert "&lt;script&gt;" in found._repr_html_()
    assert "&lt;i&gt;price" in model._repr_mimebundle_()["text/html"]


def test_notebooks_need_no_rows_as_given():
    (found, *_) = fitted().explain(None, 3)  # remembered rows have no source
    assert found.row is None and "neighbors" in found._repr_html_()
