"""Thumbnails of remembered rows: of the pixels of an image, or of the local file that is shown."""

import numpy as np

from nearwise.data.images.decode import Encoded, decode_images
from nearwise.estimators.model.fitted_model import RememberedRow
from nearwise.html.rendering import png
from nearwise.shown import picture_file

_SIDE = 256  # largest side of a thumbnail, in pixels


def thumbnail(found: RememberedRow) -> bytes | None:
    """Thumbnail of a row as PNG; None if it has no picture, or its file is gone or no image.

    A model from elsewhere may name any file. So only regular files that end and decode as images
    are read, within the limits of the decoder, and the result has pixels alone. URLs are never
    fetched. Relative paths start in the working directory of the process.
    """
    pixels = found.row.get("image")
    if not isinstance(pixels, np.ndarray):
        file = picture_file(found.show or "")
        if file is None:
            return None
        try:
            (pixels,) = decode_images([Encoded("the picture", file)], 1)
        except (ValueError, MemoryError):
            return None
    return png(pixels, _SIDE)
