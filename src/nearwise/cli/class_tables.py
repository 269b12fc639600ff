"""What ``nearwise evaluate`` shows by class: recall, precision, mistakes, or sizes of classes."""

from typing import TYPE_CHECKING, Any

import rich.table

if TYPE_CHECKING:
    import numpy as np

FEW = 10  # classes up to which each has a line, with what it is taken for


def by_class(classes: "np.ndarray", y: "np.ndarray", proba: "np.ndarray") -> list[dict[str, Any]]:
    """Count for each class its rows, recall and precision; of few, what rows are predicted as.

    A share of no rows is None.
    """
    import numpy as np

    predicted, names = proba.argmax(axis=1), [str(label) for label in classes]
    of_class, taken_for, right = (
        np.bincount(some, minlength=len(names)).tolist()
        for some in (y, predicted, y[y == predicted])
    )
    found: list[dict[str, Any]] = [
        {
            "class": name,
            "rows": of_class[i],
            "recall": right[i] / of_class[i] if of_class[i] else None,
            "precision": right[i] / taken_for[i] if taken_for[i] else None,
        }
        for i, name in enumerate(names)
    ]
    if len(names) <= FEW:
        for i, one in enumerate(found):
            counts = np.bincount(predicted[y == i], minlength=len(names)).tolist()
            one["predicted_as"] = dict(zip(names, counts, strict=True))
    return found


def class_table(found: list[dict[str, Any]]) -> rich.table.Table:
    """Lay out what `by_class` counts of few classes."""
    title = "By class: recall, precision, and how many of its rows are predicted as each class"
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("class", overflow="fold")
    for name in ("rows", "recall", "precision"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_column(f"as {one['class']}", justify="right", overflow="fold")
    for one in found:
        shares = ["-" if one[of] is None else f"{one[of]:.4f}" for of in ("recall", "precision")]
        table.add_row(
            one["class"], str(one["rows"]), *shares, *map(str, one["predicted_as"].values())
        )
    return table


def shots_of(
    learned: Any, y: "np.ndarray", halves: "dict[str, np.ndarray]"
) -> dict[str, dict[str, Any]]:
    """Accuracy of each part by the size of the classes in the memory, where sizes differ."""
    from nearwise import metrics
    from nearwise.estimators import Settings
    from nearwise.estimators.model.memory_views import FINDABLE

    memory = learned.memory_
    labels, weight = memory.labels, None
    if Settings.of(learned.settings).max_per_class:
        # A row that may be found weighs as many as it represents.
        found = memory.columns.get(FINDABLE, slice(None))
        labels, weight = labels[found], memory.sample_weight[found]
    counts = labels.bincount(weight, minlength=len(learned.classes_)).round().long().numpy()
    if not metrics.uneven(counts):
        return {}
    return {name: metrics.shot_breakdown(y, proba, counts) for name, proba in halves.items()}


def shot_table(shots: dict[str, dict[str, Any]]) -> rich.table.Table:
    """Lay out what `shots_of` finds."""
    whole = shots["model"]
    table = rich.table.Table(
        title=f"Accuracy by the size of the class ({whole['rule']})", title_justify="left"
    )
    table.add_column("classes")
    for column in shots:
        table.add_column(column, justify="right")
    for name, n_classes in whole["classes"].items():
        if n_classes:
            values = [shots[part][name] for part in shots]
            shown = ["-" if value is None else f"{value:.4f}" for value in values]
            table.add_row(f"{name}-shot, {n_classes} classes", *shown)
    table.add_row("mean over classes", *(f"{shots[part]['balanced']:.4f}" for part in shots))
    return table
