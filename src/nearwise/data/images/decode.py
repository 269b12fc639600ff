"""Encoded images (PNG, JPEG, WebP, BMP, GIF) to one uint8 array, several threads at a time."""

import io
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Color = Literal["rgb", "grey"]
Size = int | tuple[int, int]
Images = NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_CHANNELS: dict[Color, int] = {"grey": 1, "rgb": 3}
_CHUNK = 512
_NAMED = 5  # damaged images that a message names
_SHOW_FROM = 2000  # fewer images than this are there before a bar is of use
# what Pillow raises for damaged files, besides its own UnidentifiedImageError (an OSError)
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error)


class Encoded(NamedTuple):
    """An image file: its name in errors, and its bytes or its path."""

    where: str
    content: bytes | Path


class DamagedImage(NamedTuple):
    """An image that cannot be read: its name, and what the reader said."""

    where: str
    reason: str


class Sound(NamedTuple):
    """The images that could be read, and those that could not.

    Attributes
    ----------
    X : uint8 ndarray of shape (n_kept, height, width, channels)
    kept : list of int
        Places of the images in X among all that were given.
    damaged : list of DamagedImage
    """

    X: Images
    kept: list[int]
    damaged: list[DamagedImage]


class _Decoded(NamedTuple):
    pixels: Images
    color: Color
    size: tuple[int, int]


def check_options(image_size: Size | None, color: Color | None) -> tuple[int, int] | None:
    """Return `image_size` as (height, width), or None.

    Raises
    ------
    ValueError
        If a side is not a positive integer, or `color` is not one of rgb, grey.
    """
    if color is not None and color not in _CHANNELS:
        raise ValueError(f"color={color!r} is not one of rgb, grey.")
    if image_size is None:
        return None
    sides: Any = image_size if isinstance(image_size, (tuple, list)) else (image_size,) * 2
    if len(sides) != 2 or any(
        isinstance(side, bool) or not isinstance(side, (int, np.integer)) or side < 1
        for side in sides
    ):
        raise ValueError(
            f"image_size={image_size!r} is no size. Pass the side of a square, or (height, width), "
            "in pixels."
        )
    return int(sides[0]), int(sides[1])


def decode_images(
    images: Iterable[Encoded],
    n: int,
    *,
    image_size: Size | None = None,
    color: Color | None = None,
) -> Images:
    """Decode images of one size and one kind of color into one array; a damaged one is an error.

    Of an animation the first frame counts; an orientation noted by a camera is applied.
    Transparent pixels are laid on white, palettes become colors. A bar is shown on standard
    error where that is a terminal and there are many images.

    Parameters
    ----------
    images : iterable of Encoded
        What to decode, in order.
    n : int
        How many there are.
    image_size : int or (int, int), optional
        Height and width to bring every image to (smoothed; the aspect is not kept); one number
        means a square. Default: all must have the size of the first.
    color : {"rgb", "grey"}, optional
        What to turn every image into. Default: all must be of the kind of the first.

    Returns
    -------
    X : uint8 ndarray of shape (n, height, width, channels)
        1 channel for grey, 3 for color.

    Raises
    ------
    ValueError
        If an image is damaged or of a kind that 8 bits cannot hold, sizes differ or grey and
        color are mixed; names the file and what to do.
    ImportError
        If Pillow is missing.
    """
    sound = decode_sound(images, n, image_size=image_size, color=color)
    if sound.damaged:
        raise ValueError(damage_in_words(sound.damaged, n))
    return sound.X


def decode_sound(
    images: Iterable[Encoded],
    n: int,
    *,
    image_size: Size | None = None,
    color: Color | None = None,
) -> Sound:
    """Decode as `decode_images` does, and set damaged images apart instead of raising."""
    _import_pillow()
    size = check_options(image_size, color)
    X: Images = np.empty((0, 0, 0, 0), dtype=np.uint8)
    kept: list[int] = []
    damaged: list[DamagedImage] = []
    first: tuple[str, _Decoded] | None = None
    images = iter(images)
    threads = min(8, os.cpu_count() or 1)
    done = 0
    with ThreadPoolExecutor(threads) as pool, _bar(n) as advance:
        while chunk := list(islice(images, _CHUNK)):
            decoded = pool.map(lambda image: _decode(image, size, color), chunk)
            for place, (image, one) in enumerate(zip(chunk, decoded, strict=True), start=done):
                if isinstance(one, DamagedImage):
                    damaged.append(one)
                    continue
                if first is None:
                    first = (image.where, one)
                    X = np.empty((n, *one.pixels.shape), dtype=np.uint8)
                _check_alike(first, (image.where, one))
                X[len(kept)] = one.pixels
                kept.append(place)
            done += len(chunk)
            advance(len(chunk))
    assert done == n, f"{done} images, {n} announced"
    return Sound(X[: len(kept)], kept, damaged)


def damage_in_words(damaged: list[DamagedImage], n: int) -> str:
    """Say which images cannot be read, why, and what to do; `n` is the number of all."""
    none = f"none of {', '.join(FORMATS)}"
    if len(damaged) == 1:
        ((where, reason),) = damaged
        return (
            f"{where} cannot be read as an image ({reason}). It is damaged, cut short or {none}: "
            "replace or remove it."
        )
    named = ", ".join(f"{where} ({reason})" for where, reason in damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    return (
        f"{len(damaged)} of {n} images cannot be read: {named}{more}. They are damaged, cut short "
        f"or {none}: replace or remove them."
    )


def _import_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'reading image files needs the extra "vision": pip install nearwise[vision]'
        ) from error


def _decode(
    image: Encoded, size: tuple[int, int] | None, color: Color | None
) -> _Decoded | DamagedImage:
    from PIL import Image, ImageOps

    try:
        content = image.content if isinstance(image.content, bytes) else image.content.read_bytes()
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if opened.format == "PNG":  # Pillow compares the check sums of pixels only when asked
                with Image.open(io.BytesIO(content), formats=FORMATS) as again:
                    again.verify()
            opened.load()
            upright = ImageOps.exif_transpose(opened)
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        return DamagedImage(image.where, _reason(error))
    own: Color = "grey" if upright.mode in ("1", "L", "LA", "La") else "rgb"
    plain = _convert(upright, color or own, image.where)
    seen = (plain.height, plain.width)
    if size is not None and seen != size:
        plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return _Decoded(pixels.reshape(*pixels.shape[:2], _CHANNELS[color or own]), color or own, seen)


def _convert(image: Any, color: Color, where: str) -> Any:
    if image.mode.startswith("I") or image.mode == "F":
        raise ValueError(
            f"{where} has more than 8 bits a channel (Pillow's mode {image.mode}), which uint8 "
            "images cannot hold. Save it with 8 bits a channel."
        )
    if image.has_transparency_data:
        from PIL import Image

        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        image = image.convert("RGB")
    return image.convert("L" if color == "grey" else "RGB")


def _check_alike(first: tuple[str, _Decoded], other: tuple[str, _Decoded]) -> None:
    (name_a, a), (name_b, b) = first, other
    if a.color != b.color:
        raise ValueError(
            f"Grey and color images are mixed: {name_a} is {a.color}, {name_b} is {b.color}. "
            'Pass color="rgb" or color="grey" (--color rgb) to turn all into one kind.'
        )
    if a.pixels.shape != b.pixels.shape:
        raise ValueError(
            f"Images differ in size (height x width): {name_a} is {a.size[0]} x {a.size[1]}, "
            f"{name_b} is {b.size[0]} x {b.size[1]}. Pass image_size=(height, width) or one side "
            "(--image-size 64, or --resize to the size of a model) to bring all to one size."
        )


def _reason(error: BaseException) -> str:
    # Pillow's "cannot identify image file <_io.BytesIO object at 0x...>" says no more than this
    return str(error).partition(" <_io")[0].partition(" '")[0] or type(error).__name__


@contextmanager
def _bar(n: int) -> Iterator[Any]:
    if n < _SHOW_FROM:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("decoding images", total=n)
        yield lambda count: progress.advance(task, count)
