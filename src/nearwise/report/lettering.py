"""How wide text is, and where it is broken over lines."""

from collections.abc import Iterator
from functools import lru_cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

POINT = 1 / 72  # inches
FONT = "DejaVu Sans"  # comes with matplotlib


@lru_cache(maxsize=20_000)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line of text in inches, at `size` points."""
    font = FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) * POINT


def wrapped(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Break text into lines of at most `width` inches; a word that is longer is broken too."""
    lines: list[str] = []
    line = ""
    for word in _words(text, size, width, bold):
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size, bold) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line or not lines else lines


def _words(text: str, size: float, width: float, bold: bool) -> Iterator[str]:
    for word in text.split():
        while text_width(word, size, bold) > width and len(word) > 1:
            fits = (n for n in range(len(word) - 1, 1, -1) if _fits(word[:n], size, width, bold))
            cut = next(fits, 1)
            yield word[:cut]
            word = word[cut:]
        yield word


def _fits(text: str, size: float, width: float, bold: bool) -> bool:
    return text_width(text, size, bold) <= width
