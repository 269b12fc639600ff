"""Cells of several words, and the words that two of them share."""

import re

_SEVERAL = 3  # words that make a text of a cell
_WORD = re.compile(r"\w\w+")
_LETTER = re.compile(r"[^\W\d_]")


def is_text(value: object) -> bool:
    """Whether a cell is text of several words, at least three with a letter."""
    return isinstance(value, str) and len([*filter(_LETTER.search, value.split())]) >= _SEVERAL


def marked_words(text: str, other: str) -> list[tuple[str, bool]]:
    """Split a text into pieces, each with whether it is a word that the other text has too.

    Words have two letters or more; case does not matter. Nothing unless both are text.

    Examples
    --------
    >>> marked_words("Win a prize", "a prize for you")
    [('Win', False), (' a ', False), ('prize', True)]
    """
    if not (is_text(text) and is_text(other)):
        return []
    there = {word.casefold() for word in _WORD.findall(other)}
    pieces = re.split(f"({_WORD.pattern})", text)
    return [(piece, piece.casefold() in there) for piece in pieces if piece]
