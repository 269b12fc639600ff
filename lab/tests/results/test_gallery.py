"""Galleries: rows as pictures and as cells."""

import base64
import io

import numpy as np
import pytest
from matplotlib.image import imread
from nearwise_lab.results.gallery import make_page_gallery, png_uri

from lab.tests.report.records import CLASSES, gallery


def test_a_digit_becomes_a_small_png():
    uri = png_uri(np.arange(64.0).reshape(8, 8), 0, 63)
    assert uri.startswith("data:image/png;base64,iVBOR")
    assert len(uri) < 4000


def gallery_row(**values):
    row = {
        "why": "wrong", "test_row": 1, "true": "b", "predicted": "a", "proba": [0.7, 0.3],
        "null_mass": 0.1, "row": [0.0, 5.0, "x"],
        "neighbors": [
            {"id": 0, "label": "a", "distance": 0.5, "weight": 0.6, "row": [0.0, 4.0, None]},
            {"id": 9, "label": "b", "distance": 0.7, "weight": 0.2, "row": None},
        ],
    }  # fmt: skip
    return row | values


def test_a_table_gallery_shows_the_columns_that_differ():
    stored = {"image_shape": None, "columns": ["p", "q", "r"], "classes": ["a", "b"]}
    gallery = make_page_gallery("d", "m", 0, stored | {"rows": [gallery_row()]})
    (example,) = gallery.wrong
    assert gallery.columns == ["p", "q", "r"]
    assert example.true_probability == 0.3
    assert example.other_mass == pytest.approx(0.1)
    assert example.neighbors[0].row.values == ["0", "4", "missing"]
    assert example.neighbors[1].row.values == ["", "", ""]
    assert [n.agrees for n in example.neighbors] == [False, True]


def test_embeddings_are_shown_by_label_weight_and_distance():
    stored = {"image_shape": None, "columns": None, "classes": ["a", "b"], "kind": "embeddings"}
    gallery = make_page_gallery("d", "m", 0, stored | {"rows": [gallery_row()]})
    assert gallery.columns == []
    assert gallery.wrong[0].neighbors[0].weight == 0.6


def test_a_wide_table_is_cut_to_eight_columns():
    rows = [gallery_row(row=list(range(20)), neighbors=[]), gallery_row(row=[0] * 20, neighbors=[])]
    stored = {"image_shape": None, "columns": None, "classes": ["a", "b"], "rows": rows}
    gallery = make_page_gallery("d", "m", 0, stored)
    assert gallery.columns == [f"f{i}" for i in range(1, 9)]


@pytest.mark.parametrize("shape", [(4, 4, 3), (4, 4, 1), (4, 4)])
def test_uint8_images_are_shown_as_they_are(shape):
    stored = gallery(shape)
    (example,) = make_page_gallery("toys", "attention", 0, stored).wrong
    pixels = imread(io.BytesIO(base64.b64decode(example.row.image.partition(",")[2])))
    times = pixels.shape[0] // 4
    given = np.asarray(stored["rows"][0]["row"]).reshape(4, 4, -1)
    shown = np.round(255 * pixels[::times, ::times, :3])
    assert np.abs(shown - given).max() <= 1
    assert example.true == CLASSES[0]
