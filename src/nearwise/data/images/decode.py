"""Decode image files (PNG, JPEG, WebP, BMP, GIF) into one uint8 array, in several threads."""

import ctypes
import io
import os
import stat
import struct
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearwise.conditions import available_threads
from nearwise.progress_bar import late_bar

VARIABLE = "NEARWISE_IMAGE_MEMORY"
MEGABYTE = 1_000_000
_DEFAULT = 200  # megabytes
_TRIM_FROM = 4 * MEGABYTE
_ORIENTATION = 0x0112  # EXIF tag; 1 means upright
_NOTES = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
# Bytes per pixel in Pillow and its decoders, as measured by tests/intake/test_images.py.
_ONE_BYTE_MODES = ("1", "L", "P")
_WEBP_CANVASES = 12
_PROGRESSIVE_JPEG = 6  # coefficients of the whole image, at every scale


class TooLargeError(Exception):
    """An image that needs more memory than allowed."""


class Room:
    """Memory budget (bytes) of concurrent decoders; requests wait until enough is free."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._free = n_bytes
        self._changed = threading.Condition()

    @classmethod
    def from_environment(cls) -> "Room":
        """Make a budget of NEARWISE_IMAGE_MEMORY megabytes, by default 200."""
        value = os.environ.get(VARIABLE, "") or str(_DEFAULT)
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(
                f"{VARIABLE}={value!r} is not a number of megabytes. Set it to a positive whole "
                f"number, or leave it unset for {_DEFAULT}."
            )
        return cls(int(value) * MEGABYTE)

    @contextmanager
    def take(self, n_bytes: int) -> Iterator[None]:
        """Reserve `n_bytes`, waiting until they are free; small images do not wait."""
        if n_bytes < MEGABYTE:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._free >= n_bytes)
            self._free -= n_bytes
        try:
            yield
        finally:
            if n_bytes > _TRIM_FROM:
                _return_freed_memory()
            with self._changed:
                self._free += n_bytes
                self._changed.notify_all()

    def check(self, n_bytes: int, what: str) -> None:
        """Raise TooLargeError if an image exceeds the whole budget; it names the setting."""
        if n_bytes > self.n_bytes:
            needed = -(-n_bytes // MEGABYTE)
            raise TooLargeError(
                f"{what} about {needed:,} MB of memory, more than the limit of "
                f"{self.n_bytes // MEGABYTE:,} MB; to raise it, set the environment variable "
                f"{VARIABLE}={needed}"
            )


def plan(opened: Any, size: tuple[int, int] | None, mode: str, room: Room) -> int:
    """Return the bytes needed to decode an image, and select a reduced scale for a large JPEG.

    The image is opened and not yet loaded. A JPEG that does not fit and has a target `size`
    (height, width) is decoded at 1/2, 1/4 or 1/8 of its sides, but never below `size`.
    TooLargeError if the image does not fit into `room` even alone.
    """
    height, width = opened.height, opened.width
    needed = _bytes(opened, size, mode, height * width)
    if needed > room.n_bytes and size is not None and opened.format == "JPEG":
        opened.draft(None, (max(size), max(size)))  # both sides, since it may be rotated later
        needed = _bytes(opened, size, mode, height * width)
    room.check(needed, f"{height} x {width} pixels take")
    return needed


def _return_freed_memory() -> None:
    """Return freed memory to the system; glibc keeps up to 64 MB of it per thread."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def _bytes(opened: Any, size: tuple[int, int] | None, mode: str, n_whole: int) -> int:
    width = 1 if opened.mode in _ONE_BYTE_MODES else 4  # bytes per pixel
    loading = width + (_WEBP_CANVASES if opened.format == "WEBP" else 0)
    if orientation(opened) != 1:
        loading += width  # rotation makes a copy
    n_channels = len(mode)
    if size is None:
        converting = max(width + n_channels, 2 * n_channels)  # an array, then its copy
    else:
        plain = opened.mode == mode and not opened.has_transparency_data
        converting = width + (0 if plain else 4 if mode == "RGB" else 1)
    coefficients = _PROGRESSIVE_JPEG * n_whole if opened.info.get("progressive") else 0
    n_pixels = int(opened.height * opened.width)
    return max(loading * n_pixels + coefficients, converting * n_pixels)


def orientation(opened: Any) -> int:
    """Return the EXIF orientation of an image that is not loaded; 1 means upright."""
    # without notes, Pillow would decode a PNG to find EXIF data after its pixels
    found: int = opened.getexif().get(_ORIENTATION, 1) if _NOTES & opened.info.keys() else 1
    return found


Color = Literal["rgb", "grey"]
Size = int | tuple[int, int]
Images = NDArray[np.uint8]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_NONE_OF = f"none of {', '.join(FORMATS)}"
_CHANNELS: dict[Color, int] = {"grey": 1, "rgb": 3}
_MODES: dict[Color, str] = {"grey": "L", "rgb": "RGB"}
_CHUNK = 512
_WAITING = 64_000_000  # bytes of decoded images before they are copied
_TILE = 512  # side of tiles that are converted one by one, without a copy of the whole image
_NAMED = 5  # damaged images named in a message
_SHOW_FROM = 2000  # fewer images need no progress bar
# exceptions of Pillow for damaged files, besides its UnidentifiedImageError (an OSError)
DAMAGE = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error)


class Encoded(NamedTuple):
    """An image file: its name in errors, and its bytes or its path."""

    where: str
    content: bytes | Path


class DamagedImage(NamedTuple):
    """An unreadable image: its name, the error, and advice."""

    where: str
    reason: str
    advice: str = f"It is damaged, cut short or {_NONE_OF}: replace or remove it."


class Sound(NamedTuple):
    """Decoded images, their positions among all (`kept`), and the unreadable images."""

    X: Images
    kept: list[int]
    damaged: list[DamagedImage]


class _Decoded(NamedTuple):
    pixels: Images
    color: Color
    size: tuple[int, int]


def check_options(image_size: Size | None, color: Color | None) -> tuple[int, int] | None:
    """Return `image_size` as (height, width), or None; ValueError for a wrong size or color."""
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
            f"image_size={image_size!r} is not a size. Pass the side of a square, or (height, "
            "width), in pixels."
        )
    return int(sides[0]), int(sides[1])


def decode_images(
    images: Iterable[Encoded],
    n: int,
    *,
    image_size: Size | None = None,
    color: Color | None = None,
) -> Images:
    """Decode images of one size and one kind of color into an array (n, height, width, channels).

    Only the first frame of an animation is used; the EXIF orientation is applied. Transparent
    pixels become white, palettes become colors; `image_size` and `color` are as for
    `nearwise.data.load_image_folder`. A progress bar is shown for many images if standard error is
    a terminal.

    Concurrent decoding takes at most 200 MB besides the files and the array, or the megabytes in
    the environment variable NEARWISE_IMAGE_MEMORY. A larger JPEG is decoded at a half, a quarter or
    an eighth of its sides if it is to be resized; other larger images cannot be read.

    ValueError if an image is damaged or has more than 8 bits per channel, sizes differ or grey and
    color are mixed; MemoryError if the array is larger than the memory; ImportError if Pillow is
    missing.
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
    """Decode as `decode_images` does, but return unreadable images instead of raising."""
    import_pillow()
    size = check_options(image_size, color)
    X: Images = np.empty((0, 0, 0, 0), dtype=np.uint8)
    positions: list[int] = []
    damaged: list[DamagedImage] = []
    first: tuple[str, _Decoded] | None = None
    images = iter(images)
    room = Room.from_environment()
    threads = min(8, available_threads())
    done, step = 0, threads
    bar = late_bar("decoding images", n, shown=n >= _SHOW_FROM)
    with ThreadPoolExecutor(threads) as pool, bar as report:
        while chunk := list(islice(images, step)):
            decoded = pool.map(lambda image: _decode(image, size, color, room), chunk)
            for i, (image, read) in enumerate(zip(chunk, decoded, strict=True), start=done):
                if isinstance(read, DamagedImage):
                    damaged.append(read)
                    continue
                if first is None:
                    first = (image.where, read)
                    X = _array_for(n, read.pixels)
                    step = min(_CHUNK, max(threads, _WAITING // read.pixels.nbytes))
                _check_alike(first, (image.where, read))
                X[len(positions)] = read.pixels
                positions.append(i)
            done += len(chunk)
            report(done)
    assert done == n, f"{done} images, {n} announced"
    return Sound(X[: len(positions)], positions, damaged)


def damage_in_words(damaged: list[DamagedImage], n: int) -> str:
    """Describe unreadable images, reasons and remedies; `n` is the number of all images."""
    if len(damaged) == 1:
        ((where, reason, advice),) = damaged
        return f"{where} cannot be read as an image ({reason}). {advice}"
    named = ", ".join(f"{where} ({reason})" for where, reason, _ in damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    return (
        f"{len(damaged)} of {n} images cannot be read: {named}{more}. They are damaged, cut "
        f"short, too large, of more than 8 bits per channel or {_NONE_OF}: replace or remove them."
    )


def import_pillow() -> None:
    """Raise ImportError, with the extra to install, if Pillow is missing."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'reading image files needs the extra "images": pip install nearwise[images]'
        ) from error


def _array_for(n: int, pixels: Images) -> Images:
    try:
        return np.empty((n, *pixels.shape), dtype=np.uint8)
    except MemoryError as error:
        height, width, channels = pixels.shape
        raise MemoryError(
            f"{n:,} images of {height} x {width} x {channels} take {n * pixels.nbytes / 1e9:,.0f} "
            "GB, more than is available. Pass a smaller image_size (--image-size), or fewer images"
        ) from error


def _decode(
    image: Encoded, size: tuple[int, int] | None, color: Color | None, room: Room
) -> _Decoded | DamagedImage:
    from PIL import Image, ImageOps

    with ExitStack() as stack:
        try:
            content = _content(image, room)
            opened = stack.enter_context(Image.open(io.BytesIO(content), formats=FORMATS))
            if color is None:
                color = color_of(opened)
            mode = _MODES[color]
            stack.enter_context(room.take(plan(opened, size, mode, room)))
            stack.callback(opened.close)  # frees the pixels before the budget is released
            if opened.format == "PNG":  # Pillow compares the check sums of pixels only on request
                with Image.open(io.BytesIO(content), formats=FORMATS) as again:
                    again.verify()
            if opened.mode.startswith("I") or opened.mode == "F":
                deep = f"it has more than 8 bits per channel, Pillow's mode {opened.mode}"
                return DamagedImage(image.where, deep, "Save it with 8 bits per channel.")
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)
        except (TooLargeError, Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
            return DamagedImage(image.where, str(e).rstrip("."), "Make it smaller, or remove it.")
        except DAMAGE as error:
            return DamagedImage(image.where, _reason(error))
        original = (opened.height, opened.width)
        if size is None or original == size:
            pixels = _pixels(opened, mode)
        else:
            plain = _plain(opened, mode)
            plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain).reshape(*size, _CHANNELS[color])
    return _Decoded(pixels, color, original)


def color_of(opened: Any) -> Color:
    """Return whether an image is grey or in color."""
    return "grey" if opened.mode in ("1", "L", "LA", "La") else "rgb"


def size_in_words(size: Size) -> str:
    """Return a size as height x width; one number is the side of a square."""
    return " x ".join(map(str, (size, size) if isinstance(size, int) else size))


def _content(image: Encoded, room: Room) -> bytes:
    """Return the bytes of an image file.

    OSError for a pipe or a device, which may never end, TooLargeError if the file alone exceeds the
    memory budget.
    """
    if isinstance(image.content, bytes):
        return image.content
    status = image.content.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
    room.check(status.st_size, "the file takes")
    return image.content.read_bytes()


def _pixels(image: Any, mode: str) -> Images:
    """Convert an image to an array of shape (height, width, channels)."""
    pixels = np.empty((image.height, image.width, len(mode)), dtype=np.uint8)
    for left, top, piece in _pieces(image):
        target = pixels[top : top + piece.height, left : left + piece.width]
        target[:] = np.asarray(_convert(piece, mode)).reshape(target.shape)
    return pixels


def _plain(image: Any, mode: str) -> Any:
    """Convert an image; return it unchanged if it has the mode already."""
    from PIL import Image

    if image.mode == mode and not image.has_transparency_data:
        return image
    plain = Image.new(mode, image.size)
    for left, top, piece in _pieces(image):
        plain.paste(_convert(piece, mode), (left, top))
    return plain


def _pieces(image: Any) -> Iterator[tuple[int, int, Any]]:
    """Split an image into tiles, each with its left and its upper edge."""
    if image.width <= _TILE and image.height <= _TILE:
        yield 0, 0, image
        return
    for top in range(0, image.height, _TILE):
        for left in range(0, image.width, _TILE):
            right, bottom = min(left + _TILE, image.width), min(top + _TILE, image.height)
            yield left, top, image.crop((left, top, right, bottom))


def _convert(image: Any, mode: str) -> Any:
    if image.has_transparency_data:
        from PIL import Image

        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        image = image.convert("RGB")
    return image.convert(mode)


def _check_alike(first: tuple[str, _Decoded], other: tuple[str, _Decoded]) -> None:
    (name_a, a), (name_b, b) = first, other
    if a.color != b.color:
        raise ValueError(
            f"Grey and color images are mixed: {name_a} is {a.color}, {name_b} is {b.color}. "
            'Pass color="rgb" or color="grey" (--color rgb) to convert all to one kind.'
        )
    if a.pixels.shape != b.pixels.shape:
        raise ValueError(
            f"Images differ in size (height x width): {name_a} is {a.size[0]} x {a.size[1]}, "
            f"{name_b} is {b.size[0]} x {b.size[1]}. Pass image_size=(height, width) or one side "
            "(--image-size 128, or --resize to the size of a model) to bring all to one size. With "
            'the extra "images", a fit to the folder itself (in Python fit("photos")) does so if '
            "most images are above 64 pixels."
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # without the object in Pillow's "cannot identify image file <_io.BytesIO object at 0x...>"
    return str(error).partition(" <_io")[0].partition(" '")[0] or type(error).__name__
