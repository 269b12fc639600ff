"""Lookup of categories and labels by their text: in a CSV 7, 7.0 and "7" may be equal."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from nearwise.data.tables.cells import EXACT_BELOW
from nearwise.data.tables.spellings import NUMBER


def labels_as_classes(labels: "pd.Series", classes: np.ndarray) -> "pd.Series":
    """Convert labels from a file to the types of a model's classes.

    A label that equals a class only as text, such as 1 and "1", becomes that class. If all classes
    are text, other labels become text too.
    """
    known, of_class = classes.tolist(), set(classes.tolist())
    code_of = code_by_text(known)
    all_text = all(isinstance(one, str) for one in known)

    def as_class(label: Any) -> Any:
        if label in of_class:
            return label
        code = code_of(label)
        return known[code - 1] if code else in_text(label) if all_text else label

    found = {label: as_class(label) for label in labels.unique().tolist()}
    values = [found[label] for label in labels.tolist()]
    return pd.Series(values, index=labels.index, name=labels.name)


def code_by_text(known: list[Any]) -> Callable[[Any], int]:
    """Make a function from values to codes, by text; 0 if none or several match.

    Equal text matches first, then the value that a CSV reader would parse: "07" matches 7, "true"
    matches True. Two different texts never match.
    """
    texts: dict[str, set[int]] = defaultdict(set)
    read: dict[str, set[int]] = defaultdict(set)
    for code, value in enumerate(known, start=1):
        texts[in_text(value)].add(code)
        read[as_read(value)].add(code)

    def code_of(value: Any) -> int:
        text = in_text(value)
        fit = texts.get(text) or read.get(as_read(value), set())
        if len(fit) != 1:
            return 0
        (code,) = fit
        other = known[code - 1]
        alike = isinstance(value, str) and isinstance(other, str)
        return 0 if alike and text != other else code

    return code_of


def in_text(value: Any) -> str:
    """Text of a category; a whole float is written as an integer."""
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW:
        return str(int(value))
    return str(value)


def as_read(value: Any) -> str:
    """Text of the value that a CSV reader would parse from a category's text."""
    if not isinstance(value, str):
        return in_text(value)
    word = value.strip()
    if word in ("true", "TRUE", "false", "FALSE"):
        return word.title()
    if not NUMBER.fullmatch(word):
        return word
    return str(int(word)) if word.lstrip("+-").isdigit() else in_text(float(word))
