"""Steps that a fit will probably take, for its progress display.

Whether a trained key space is used, and which classifiers of the base are cross-fitted on all
folds, shows during the fit. The display then corrects its total.
"""

from collections.abc import Sequence
from typing import Any

from nearwise.estimators.fit.networks import embedder_kind
from nearwise.estimators.fit.problem import FitSettings, Problem, auto_folds

Phases = list[dict[str, int]]
KEY_SPACE = "key space"
_TRIES = 2  # sets of spaces that the head of an image classifier is fitted to


def n_folds(problem: Problem, settings: FitSettings) -> int:
    """Count the folds of a table, also before they are made."""
    if problem.is_held_out:
        return 1
    return len(settings.folds) or (
        settings.cv if isinstance(settings.cv, int) else auto_folds(len(problem.labels))
    )


def table_steps(
    problem: Problem,
    settings: FitSettings,
    candidates: Sequence[Any],
    *,
    n_heads: int,
    tries_gaussian: bool,
    has_forest: bool,
) -> Phases:
    """Return the steps of a table classifier; without `n_heads` only the first base is fitted."""
    first: Phases = [{"features": 1}, {"gaussian": int(tries_gaussian)}]
    last: Phases = [{"forest": int(has_forest)}, {"memory": 1}]
    if not n_heads:
        return [*first, *last, {"temperature": 1}]
    n, kind = n_folds(problem, settings), embedder_kind(problem, settings)
    n_networks = 0 if kind in (None, "table") else n * problem.n_networks
    trains_keys = kind == "table" and settings.embedder != "auto"
    n_keys = n if trains_keys else int(kind == "table")
    return [
        *first,
        {"embedder": n_networks},
        {"neighbors of fold": n, KEY_SPACE: n_keys},
        {f"base: {one.name}": n for one in candidates},
        {last_key_space(n): int(trains_keys)},
        *last,
        {"head": n_heads},
        {"views": int(bool(problem.views))},
    ]


def last_key_space(n: int) -> str:
    """Start of the name of the key space of all rows, after those of `n` folds."""
    return f"{KEY_SPACE} {n + 1} of"


def image_steps(problem: Problem, settings: FitSettings, *, n_heads: int) -> Phases:
    """Return the steps of an image classifier."""
    checks_labels = settings.label_fitter.description is not None
    return [
        {"true labels, network": 2 * checks_labels},
        {"embedder": len(problem.folds) * problem.n_networks},
        {"layers of the backbone": 1},
        {"memory": 1},
        {"head": _TRIES * n_heads},
        {"views": int(bool(problem.views))},
    ]


def number_steps(
    candidates: Sequence[Any], n: int, *, has_forest: bool, n_rounds: int, n_as_new: int
) -> Phases:
    """Return the steps of a regressor with `n` folds, of which `n_as_new` are predicted as new."""
    return [
        {"label noise, round": n_rounds},
        {"features": 1},
        {"forest": int(has_forest)},
        {f"base: {one.name}": n for one in candidates},
        {"memory": 1},
        {"calibration": 1},
        {"calibration: ": n_as_new},
    ]
