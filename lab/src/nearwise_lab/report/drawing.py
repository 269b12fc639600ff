"""How figures are drawn: inline SVG that follows the page's colors."""

import html
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.figure import Figure

# Stand-ins drawn by matplotlib and replaced by those of the page's style sheet.
INK, FAINT, ACCENT, SOFT = "#010203", "#040506", "#070809", "#0a0b0c"
_PAGE_COLORS = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    ACCENT: "var(--accent)",
    SOFT: "var(--soft)",
}
# Colorblind-safe, readable on light and dark (Okabe and Ito, slightly lightened).
LINE_COLORS = ("#0f86c9", "#009e73", "#cc79a7", "#b58900", "#7a6fd0", "#5b8a8a", "#a0522d")
# Color, mark and line of the suite's methods, the same in every figure.
METHOD_LOOK: dict[str, tuple[str, str, str]] = {
    "uniform": (LINE_COLORS[0], "s", "-"),
    "distance": (LINE_COLORS[1], "^", "--"),
    "distance-tuned": (LINE_COLORS[3], "v", "-."),
    "attention": (ACCENT, "o", "-"),
    "attention+tta": (LINE_COLORS[2], "D", ":"),
    "attention+noise-model": (LINE_COLORS[2], "d", "-"),
    "attention+noise-model+tta": (LINE_COLORS[2], "d", ":"),
    "attention+uniform-prior": (LINE_COLORS[2], "<", "-"),
    "cnn": (LINE_COLORS[5], "P", "--"),
    "mlp": (LINE_COLORS[5], "P", "--"),
    "cnn+temperature": (LINE_COLORS[4], "X", "-"),
    "mlp+temperature": (LINE_COLORS[4], "X", "-"),
}
POINTS_TO_PIXELS = 1.5  # 9 pt text is 13.5 px at full width, close to the text of the page
# The light page of style.css, for what cannot follow the reader's system.
PRINT_COLORS = {INK: "#1d2126", FAINT: "#b9bfc7", ACCENT: "#b8430f", SOFT: "#9db0c3"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.direction": "out",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Picture:
    """An inline SVG with a caption.

    Attributes
    ----------
    svg : str
        Element to place in the page; its `aria-label` describes it.
    caption : str
        How to read it.
    alt : str
        What is to be seen, for those who cannot see it.
    name : str
        Unique in the page; names the files that it is written to.
    """

    svg: str
    caption: str
    alt: str = ""
    name: str = ""


def page_style() -> AbstractContextManager[None]:
    """Draw in the style of the page while the context lasts."""
    return matplotlib.rc_context(_STYLE)


def picture(figure: Figure, name: str, alt: str, caption: str) -> Picture:
    """Make a picture of a figure; see `to_svg`."""
    return Picture(to_svg(figure, name, alt), caption, alt, name)


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """Turn a figure into an inline SVG element.

    Returns str: the svg element, without size: it fills its column. The same figure gives the same
    text.

    Parameters
    ----------
    figure : Figure
        Drawn in `page_style` with the stand-in colors of this module.
    name : str
        Unique in the page; prefixes every id inside the figure.
    alt : str
        What is to be seen, for those who cannot see it.
    """
    buffer = io.BytesIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue().decode()
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*;?\s*", "", svg)  # the page's own, see style.css
    for drawn, css in _PAGE_COLORS.items():
        svg = svg.replace(drawn, css)
    svg = re.sub(r'\b(width|height)="[\d.]+pt"', "", svg, count=2)  # the page gives the width
    width = round(POINTS_TO_PIXELS * 72 * float(figure.get_size_inches()[0]))
    return svg.replace(
        "<svg ",
        f'<svg role="img" aria-label="{html.escape(alt)}" style="max-width: {width}px" ',
        1,
    )


def print_svg(svg: str) -> str:
    """Fix the colors of an element that `to_svg` made, for files without the page's style."""
    for drawn, css in _PAGE_COLORS.items():
        svg = svg.replace(css, PRINT_COLORS[drawn])
    return svg


def recolor(figure: Figure, colors: Mapping[str, str] = PRINT_COLORS) -> None:
    """Replace the stand-in colors of this module in a drawn figure."""
    wanted = {to_rgba(drawn)[:3]: to_rgba(color)[:3] for drawn, color in colors.items()}

    def change(value: Any) -> Any:
        rows = np.atleast_2d(to_rgba_array(value)) if not isinstance(value, str) else None
        if rows is None:
            red, green, blue, alpha = to_rgba(value)
            return (*wanted.get((red, green, blue), (red, green, blue)), alpha)
        return np.array([(*wanted.get(tuple(row[:3]), row[:3]), row[3]) for row in rows])

    for artist in figure.findobj():
        for part in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{part}", None), getattr(artist, f"set_{part}", None)
            if get is None or put is None:
                continue
            value = get()
            put(change(value))


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """Give a figure of this size (inches) and its axes, an array of (rows, columns)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def slug(text: str) -> str:
    """Text as part of an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"
