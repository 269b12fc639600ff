"""Rendering of templates; all cell values are escaped."""

import base64
import io
import math
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined

from nearwise.conditions import require_extra
from nearwise.html.charts import Chart, up_to_a_tick
from nearwise.html.neighbors import is_missing, neighbor_table, used_first
from nearwise.html.numbers import decimals, distribution, number

STYLE = files("nearwise.html").joinpath("nearwise.css").read_text(encoding="utf-8")
_GAP, _SPACE = "\N{EN DASH}", "\N{NO-BREAK SPACE}"


@cache
def environment(package: str | None = None) -> Environment:
    """Return the templates of this package; those of another package take precedence."""
    loaders: list[BaseLoader] = [PackageLoader("nearwise.html")]
    if package is not None:
        loaders.insert(0, PackageLoader(package))
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "cell": cell, "picture": picture, "used_first": used_first}
    made.filters |= {"number": number, "decimals": decimals, "distribution": distribution}
    made.globals |= {
        "Chart": Chart,
        "neighbor_table": neighbor_table,
        "most_classes": most_classes,
        "up_to_a_tick": up_to_a_tick,
        "zip": zip,
    }
    return made


def notebook(template: str, **values: Any) -> str:
    """Render a template for a notebook, with its style."""
    inner = environment().get_template(template).render(**values)
    return f'<style>{STYLE}</style><div class="nearwise">{inner}</div>'


def most_classes(sizes: dict[float, np.ndarray]) -> int:
    """Largest set size with a nonzero share, over all confidences."""
    return max(int(np.flatnonzero(shares).max(initial=0)) for shares in sizes.values())


def percent(share: float) -> str:
    """Format a share: 97.3 %; values near 0 % or 100 % are shown as limits."""
    if not math.isfinite(share):
        return _GAP
    percents = 100 * share
    if 0 < percents < 0.05:
        return f"<0.1{_SPACE}%"
    if 99.95 <= percents < 100:
        return f">99.9{_SPACE}%"
    return f"{percents:.1f}{_SPACE}%"


def cell(value: Any) -> str:
    """Format a cell; a dash for a missing value."""
    if is_missing(value):
        return _GAP
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)


def picture(pixels: np.ndarray) -> str:
    """Convert pixels (height, width, channels) to a PNG for an ``<img>``."""
    require_extra("A picture", "vision", "PIL")
    from PIL import Image

    image = Image.fromarray(np.asarray(pixels).squeeze())
    held = io.BytesIO()
    image.save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()
