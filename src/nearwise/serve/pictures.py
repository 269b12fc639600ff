"""Thumbnails of remembered rows: of the pixels of an image, or of the local file that is shown."""

from nearwise.estimators.faces import face_of
from nearwise.estimators.model.fitted_model import RememberedRow
from nearwise.html.rendering import png

_SIDE = 256  # largest side of a thumbnail, in pixels


def thumbnail(row: RememberedRow) -> bytes | None:
    """Thumbnail of a row as PNG; None if it has no picture, or its file is gone or no image."""
    pixels = face_of(row).picture
    return None if pixels is None else png(pixels, _SIDE)
