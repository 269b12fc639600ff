"""Rendering of templates; all cell values are escaped."""

import base64
import io
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined

from nearwise.conditions import require_extra
from nearwise.data.tables.words import marked_words
from nearwise.html.card import face_of, make_card, pixels_of
from nearwise.html.charts import Chart, up_to_a_tick
from nearwise.html.neighbors import neighbor_table, used_first
from nearwise.html.numbers import cell, decimals, distribution, number, percent
from nearwise.shown import is_address

_LIKELY = 0.005  # least probability of a class that is listed
STYLE = files("nearwise.html").joinpath("nearwise.css").read_text(encoding="utf-8")


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
    made.filters |= {"is_address": is_address, "marked_words": marked_words}
    made.filters |= {"number": number, "decimals": decimals, "distribution": distribution}
    made.tests["likely"] = likely
    made.globals |= {
        "Chart": Chart,
        "face_of": face_of,
        "make_card": make_card,
        "pixels_of": pixels_of,
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


def likely(at: int, *each: np.ndarray | None) -> bool:
    """Whether the class at a position has a probability of at least 0.5 % in any of the arrays."""
    return any(proba is not None and proba[at] >= _LIKELY for proba in each)


def most_classes(sizes: dict[float, np.ndarray]) -> int:
    """Largest set size with a nonzero share, over all confidences."""
    return max(int(np.flatnonzero(shares).max(initial=0)) for shares in sizes.values())


def picture(pixels: np.ndarray | str, side: int | None = None) -> str:
    """Convert pixels (height, width, channels) to a PNG for an ``<img>``; a data URI is kept.

    `side` is its largest side in pixels.
    """
    if isinstance(pixels, str):
        return pixels
    return "data:image/png;base64," + base64.b64encode(png(pixels, side)).decode()


def png(pixels: np.ndarray, side: int | None = None) -> bytes:
    """Convert pixels (height, width, channels) to a PNG; `side` is its largest side in pixels."""
    require_extra("A picture", "images", "PIL")
    from PIL import Image

    grey = pixels.shape[-1] == 1
    image = Image.fromarray(np.asarray(pixels[..., 0] if grey else pixels))
    if side is not None:
        image.thumbnail((side, side))
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()
