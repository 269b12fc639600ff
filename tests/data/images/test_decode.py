"""Promises of the decoder: one size, one kind of color, every damaged file named."""

import numpy as np
import pytest
from PIL import Image

from nearwise.data.images.decode import Encoded, decode_images
from tests.data.cases import encode, pixels


def decode(*contents, **options):
    named = [Encoded(f"file {i}", content) for i, content in enumerate(contents)]
    return decode_images(named, len(named), **options)


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_pixels_come_back_exactly_in_their_order(form, shape):
    images = pixels(1200, shape)
    options = {"lossless": True} if form == "WEBP" else {}
    contents = [encode(image, form, **options) for image in images[:: 40 if form == "WEBP" else 1]]
    color = "grey" if len(shape) == 2 else "rgb"  # WebP has no grey
    X = decode(*contents, color=color)
    expected = images[:: 40 if form == "WEBP" else 1].reshape(len(contents), 5, 7, -1)
    np.testing.assert_array_equal(X, expected)


def test_of_an_animation_the_first_frame_counts():
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    import io

    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    assert (decode(stream.getvalue(), color="grey") == 10).all()


def test_transparent_pixels_are_laid_on_white_and_palettes_become_colors():
    rgba = np.zeros((2, 2, 4), dtype=np.uint8)
    rgba[0, 0] = (200, 0, 0, 255)
    X = decode(encode(rgba))
    assert X[0, 0, 0].tolist() == [200, 0, 0]
    assert X[0, 1, 1].tolist() == [255, 255, 255]
    import io

    stream = io.BytesIO()
    Image.fromarray(rgba[..., :3]).convert("P").save(stream, "PNG")
    assert decode(stream.getvalue()).shape == (1, 2, 2, 3)
    grey_alpha = np.zeros((2, 2, 2), dtype=np.uint8)
    assert decode(encode(grey_alpha)).tolist() == np.full((1, 2, 2, 1), 255).tolist()


def test_a_noted_orientation_is_applied():
    image = pixels(1, (2, 6, 3))[0]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    X = decode(encode(image, "PNG", exif=exif))
    np.testing.assert_array_equal(X[0], np.rot90(image, -1))


@pytest.mark.parametrize(("size", "shape"), [(3, (3, 3)), ((2, 5), (2, 5))])
def test_image_size_brings_all_to_one_size(size, shape):
    X = decode(
        encode(np.full((4, 6), 9, np.uint8)), encode(np.full((5, 6), 9, np.uint8)), image_size=size
    )
    assert X.shape == (2, *shape, 1)
    assert (X == 9).all()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.02, 0.6, 0.98])
def test_a_truncated_image_is_refused_with_its_name(form, share):
    content = encode(pixels(1, (40, 40, 3))[0], form)
    with pytest.raises(ValueError, match=r"file 0 cannot be read as an image"):
        decode(content[: int(len(content) * share)])


@pytest.mark.parametrize(
    "options",
    [{"color": "gray"}, {"image_size": 0}, {"image_size": (1, 2, 3)}, {"image_size": 2.5}],
    ids=str,
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        decode(encode(pixels(1)[0]), **options)
