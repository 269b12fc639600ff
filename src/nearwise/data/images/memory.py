"""How much memory decoding images may take: one limit, shared by all threads."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "NEARWISE_IMAGE_MEMORY"
MEGABYTE = 1_000_000
_DEFAULT = 200  # megabytes
_TRIM_FROM = 4 * MEGABYTE
_ORIENTATION = 0x0112  # EXIF tag; 1 means upright
_NOTES = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
# Bytes per pixel that Pillow and its decoders hold, as measured by tests/intake/test_images.py.
_ONE_BYTE_MODES = ("1", "L", "P")
_WEBP_CANVASES = 12
_PROGRESSIVE_JPEG = 6  # coefficients of the whole image, at every scale


class TooLargeError(Exception):
    """An image that would take more memory than is allowed."""


class Room:
    """Memory that the images being decoded share; who asks for more than is free waits.

    Parameters
    ----------
    n_bytes : int
        What all of them may take together.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._free = n_bytes
        self._changed = threading.Condition()

    @classmethod
    def from_environment(cls) -> "Room":
        """Make room for the megabytes of NEARWISE_IMAGE_MEMORY, by default 200.

        Raises ValueError if the variable holds no positive whole number.
        """
        value = os.environ.get(VARIABLE, "") or str(_DEFAULT)
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(
                f"{VARIABLE}={value!r} is no number of megabytes. Set it to a positive whole "
                f"number, or leave it unset for {_DEFAULT}."
            )
        return cls(int(value) * MEGABYTE)

    @contextmanager
    def take(self, n_bytes: int) -> Iterator[None]:
        """Hold `n_bytes`, at most all there are, once they are free; small images need not wait."""
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
        """Refuse what does not fit even alone.

        Raises TooLargeError that says how much there may be, and what to set.
        """
        if n_bytes > self.n_bytes:
            needed = -(-n_bytes // MEGABYTE)
            raise TooLargeError(
                f"{what} about {needed:,} MB of memory, more than the limit of "
                f"{self.n_bytes // MEGABYTE:,} MB; to raise it, set the environment variable "
                f"{VARIABLE}={needed}"
            )


def plan(opened: Any, size: tuple[int, int] | None, mode: str, room: Room) -> int:
    """Return the bytes that decoding an image takes, and have a large JPEG decoded smaller.

    Raises TooLargeError if the image does not fit into `room` even alone.

    Parameters
    ----------
    opened : PIL.ImageFile.ImageFile
        Opened and not yet loaded. A JPEG that does not fit and is to be resized is set to be
        decoded at 1/2, 1/4 or 1/8 of its sides, but never below `size`.
    size : (int, int), optional
        Height and width that it is brought to.
    mode : {"L", "RGB"}
        What it is converted to.
    """
    height, width = opened.height, opened.width
    needed = _bytes(opened, size, mode, height * width)
    if needed > room.n_bytes and size is not None and opened.format == "JPEG":
        opened.draft(None, (max(size), max(size)))  # both sides: it may yet be turned
        needed = _bytes(opened, size, mode, height * width)
    room.check(needed, f"{height} x {width} pixels take")
    return needed


def _return_freed_memory() -> None:
    """Give freed memory back to the system; glibc keeps up to 64 MB of it for each thread."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def _bytes(opened: Any, size: tuple[int, int] | None, mode: str, n_whole: int) -> int:
    own = 1 if opened.mode in _ONE_BYTE_MODES else 4
    loading = own + (_WEBP_CANVASES if opened.format == "WEBP" else 0)
    # without these, a PNG would be decoded to look for EXIF behind its pixels
    if _NOTES & opened.info.keys() and opened.getexif().get(_ORIENTATION, 1) != 1:
        loading += own  # turning makes a copy
    n_channels = len(mode)
    if size is None:
        converting = max(own + n_channels, 2 * n_channels)  # an array, then its copy among all
    else:
        plain = opened.mode == mode and not opened.has_transparency_data
        converting = own + (0 if plain else 4 if mode == "RGB" else 1)
    coefficients = _PROGRESSIVE_JPEG * n_whole if opened.info.get("progressive") else 0
    n_pixels = int(opened.height * opened.width)
    return max(loading * n_pixels + coefficients, converting * n_pixels)
