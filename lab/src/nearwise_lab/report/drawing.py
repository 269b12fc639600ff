"""Style of figures: inline SVG that follows the page's colors."""

import html
import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Of the light page of style.css, which replaces them by its own for readers of a dark one.
INK, FAINT, ACCENT, SOFT = "#1d2126", "#b9bfc7", "#b8430f", "#9db0c3"
_PAGE_COLORS = {INK: "var(--ink)", FAINT: "var(--faint)", ACCENT: "var(--accent)",
                SOFT: "var(--soft)"}  # fmt: skip
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
    """An inline SVG with a caption and an alternative text.

    `name` is unique in the page and names the files that it is written to.
    """

    svg: str
    caption: str
    alt: str = ""
    name: str = ""


def page_style() -> AbstractContextManager[None]:
    """Draw in the style of the page while the context lasts."""
    return matplotlib.rc_context(_STYLE)


def picture(figure: Figure, name: str, alt: str, caption: str) -> Picture:
    """Make a picture of a figure that was drawn in `page_style`.

    The svg has no size: it fills its column. `name` prefixes every id inside. The same figure
    gives the same text.
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
    attributes = f'role="img" aria-label="{html.escape(alt)}" style="max-width: {width}px"'
    return Picture(svg.replace("<svg ", f"<svg {attributes} ", 1), caption, alt, name)


def print_svg(svg: str) -> str:
    """Fix the colors of a picture, for files without the page's style."""
    for color, css in _PAGE_COLORS.items():
        svg = svg.replace(css, color)
    return svg


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure by itself (.png, .svg or .pdf)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Software": None} if path.suffix == ".png" else None
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=130, metadata=metadata)
    return path


def slug(text: str) -> str:
    """Text as part of an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"
