"""Faces of remembered rows: the pixels of an image, or the local file that is shown with it."""

import numpy as np

from nearwise.data.images.pictures import read_picture
from nearwise.estimators.model.fitted_model import RememberedRow
from nearwise.html import Face


def face_of(row: RememberedRow) -> Face:
    """Face of a remembered row: its pixels, or what is shown with it."""
    pixels, show = row.row.get("image"), row.show or ""
    return Face(pixels if isinstance(pixels, np.ndarray) else read_picture(show), show)
