"""Photographs of mixed sizes and colors: the common form that they are brought to."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nearwise.data.images.decode import (
    DAMAGE,
    FORMATS,
    Color,
    Size,
    check_options,
    color_of,
    import_pillow,
    orientation,
    size_in_words,
)
from nearwise.warn import warn_user

_SMALL = 64  # pixels of the larger side; above it, an image is a photograph
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap height and width


class _Head(NamedTuple):
    """Height and width of an image as it is shown, and its color."""

    size: tuple[int, int]
    color: Color


def common_form(
    files: Sequence[Path], where: str, image_size: Size | None, color: Color | None, mixed: Size
) -> tuple[Size | None, Color | None]:
    """Return `image_size` and `color` for these files, chosen if they are not given.

    If most images are above 64 pixels and their sizes differ, the size is `mixed`; if grey and
    color are mixed, the color is "rgb". Only the beginnings of the files are read, and unreadable
    ones do not count. Warns about what is chosen.
    """
    import_pillow()
    check_options(image_size, color)
    if image_size is not None and color is not None:
        return image_size, color
    heads = [head for file in files if (head := _head(file)) is not None]
    sizes = {head.size for head in heads}
    n_small = sum(max(head.size) <= _SMALL for head in heads)
    if 2 * n_small >= len(heads):
        return image_size, color
    if image_size is None and len(sizes) > 1:
        image_size = mixed
        sides = [side for size in sizes for side in size]
        small = f", {n_small} of them up to {_SMALL} pixels," if n_small else ""
        warn_user(
            f"{where}: {len(heads)} images with sides of {min(sides)} to {max(sides)} pixels"
            f"{small} are resized to {size_in_words(mixed)}. The aspect ratio is not kept. For "
            "another size: image_size=160."
        )
    if color is None and len({head.color for head in heads}) > 1:
        n_grey = sum(head.color == "grey" for head in heads)
        color = "rgb"
        warn_user(
            f"{where}: {n_grey} of {len(heads)} images are grey, and are read as color. "
            'For the reverse: color="grey".'
        )
    return image_size, color


def _head(file: Path) -> _Head | None:
    """Return the size and color of an image without decoding it, None if it is unreadable."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if not file.is_file():  # a pipe may never end
                return None
            with Image.open(file, formats=FORMATS) as opened:
                size = (opened.height, opened.width)
                turned = orientation(opened) in _SIDEWAYS
                return _Head(size[::-1] if turned else size, color_of(opened))
    except (*DAMAGE, Image.DecompressionBombError):
        return None
