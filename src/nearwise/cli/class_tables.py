"""What ``nearwise evaluate`` shows by class: recall, precision, mistakes, or sizes of classes."""

from typing import TYPE_CHECKING, Any

import rich.table

from nearwise.cli.console import grid

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
    heads = ["class", "rows", "recall", "precision", *(f"as {one['class']}" for one in found)]
    rows = [
        [
            one["class"],
            one["rows"],
            *("-" if one[of] is None else f"{one[of]:.4f}" for of in ("recall", "precision")),
            *one["predicted_as"].values(),
        ]
        for one in found
    ]
    return grid(title, heads, rows)


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
    rows = [
        [
            f"{name}-shot, {n_classes} classes",
            *("-" if part[name] is None else f"{part[name]:.4f}" for part in shots.values()),
        ]
        for name, n_classes in whole["classes"].items()
        if n_classes
    ]
    rows += [["mean over classes", *(f"{part['balanced']:.4f}" for part in shots.values())]]
    return grid(f"Accuracy by the size of the class ({whole['rule']})", ["classes", *shots], rows)
