"""Summary of a fit: what was learned, its scores, and the next command."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from nearwise.cli.answer_columns import wrong_labels_line
from nearwise.cli.console import say, typed
from nearwise.cli.rows.rows import Rows
from nearwise.cli.scores import left_out_scores
from nearwise.cli.tables import shown_cell

if TYPE_CHECKING:
    from nearwise.estimators.opening import Estimator

_FOR_INTERVALS = 19  # least rows, or groups, for intervals of confidence 0.9


def summarize(model: "Estimator", rows: Rows, seconds: float, out: Path, *, unnamed: bool) -> None:
    """Print a summary of the fit, its scores, and suggested next commands."""
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.estimators.inputs.columns import ROW_ID
    from nearwise.estimators.uncertainty.intervals import calibration_numbers

    choice = model.report_.choice
    if rows.names is None:
        n_used = sum(use != "left out" for use in model.report_.columns.values())
        learned, nll = f"rows and {n_used} columns", "out-of-fold NLL {:.4f}"
        if "sparse" in choice:
            of = choice["sparse"]
            learned = f"rows of {of['columns']} sparse columns, as {of['components']} components,"
        if model.cv == "latest":
            nll = f"NLL {{:.4f}} on the latest {choice['held_out']} rows"
    else:
        size = model.report_.columns["image"].removesuffix(" uint8")
        learned, nll = f"images of {size}", "out-of-fold NLL {:.4f}"
        if "held_out" in choice:
            nll = f"NLL {{:.4f}} on {choice['held_out']} held-out images"
        if "photographs" in choice:
            learned += f", embedded by {choice['photographs']},"
    if isinstance(model, AttnKNNClassifier):
        what, more = f"{len(model.classes_)} classes", " --proba"
        scores = nll.format(model.report_.oof_nll)
    else:
        ends = (shown_cell(end(model.fitted_.numbers)) for end in (min, max))
        left_out = left_out_scores(model)
        rmse, crps = (shown_cell(left_out[name]) for name in ("rmse", "crps"))
        what, base = f"targets of {' to '.join(ends)}", ", ".join(choice["base"] or ["none"])
        scores = f"out-of-sample RMSE {rmse} and CRPS {crps}, in the unit of the target"
        scores = f"{scores}; base: {base}"
        n_known = calibration_numbers(model.fitted_.predictor).counts.sum()
        more = " --confidence 0.9" if n_known >= _FOR_INTERVALS else ""
    say(f"Learned {what} from {len(rows)} {learned} in {seconds:.1f} s; {scores}.")
    if model.label_noise is not None:
        say(wrong_labels_line(model))
    groups = choice.get("groups", {})
    if groups.get("of") == "copies":
        n_copies = len(model.memory_) - groups["n"]
        say(
            f"note: {n_copies} {rows.noun} are duplicates and are held out together: calibration "
            f"and scores hold for new {rows.noun} without a duplicate. If new ones will have some, "
            "name a column that differs in every row with --groups."
        )
    new = "NEW_DATA" if rows.names is None else "NEW_IMAGES"
    header = " --no-header" if unnamed else ""
    predict = typed("predict", out, new)
    ids = [one.name for one in model.report_.column_report if one.reason == ROW_ID]
    keep = f" --copy {shlex.quote(ids[0])}" if ids else ""
    say(f"Saved to {out}. Next: {predict}{header} --out predictions.csv{more}{keep}")
