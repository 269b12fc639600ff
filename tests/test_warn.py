"""A warning names the line of the user's program, not one inside the library."""

import inspect
import warnings

import pandas as pd
import pytest
import torch

from nearwise.warn import warn_user
from tests.estimators.cases import blobs, fitted


def line_of(caught) -> tuple[str, int]:
    """File and line of the only warning."""
    (warning,) = caught
    return warning.filename, warning.lineno


@pytest.fixture(scope="module")
def model():
    X, y = blobs(60)
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    return fitted(frame, y), frame


METHODS = ("predict", "explain", "novelty_score", "predict_set", "query", "kneighbors", "keys")


@pytest.mark.parametrize("method", METHODS)
def test_warnings_of_new_rows_name_the_line_that_gave_them(model, method):
    known, frame = model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(known, method)(frame[:3].assign(more=1.0))
        here = inspect.currentframe().f_lineno - 1
    assert line_of(caught) == (__file__, here)


def test_what_lies_between_two_frames_of_the_library_is_left_out():
    code = compile(
        "def inner(): warn_user('odd', RuntimeWarning)", warn_user.__code__.co_filename, "exec"
    )
    names = {"warn_user": warn_user}
    exec(code, names)

    def between():
        names["inner"]()

    outer = compile("def outer(call): call()", warn_user.__code__.co_filename, "exec")
    exec(outer, names)
    with pytest.warns(RuntimeWarning, match="odd") as caught:
        names["outer"](between)
        here = inspect.currentframe().f_lineno - 1
    assert line_of(caught) == (__file__, here)


def test_a_decorator_of_torch_around_a_method_is_left_out_and_one_around_the_caller_is_not(model):
    known, frame = model
    lines = []

    @torch.no_grad()
    def caller():
        torch.no_grad()(known.predict)(frame[:3].assign(more=1.0))
        lines.append(inspect.currentframe().f_lineno - 1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        caller()
    assert line_of(caught) == (__file__, lines[0])
