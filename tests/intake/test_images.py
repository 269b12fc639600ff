"""Bad and unusual image files: each gives an image, or a message that says what to do."""

import io
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearwise.data import load_image_folder, read_images
from nearwise.data.images.decode import Encoded, Room, decode_images
from tests.data.cases import encode, pixels, scratched

GREY, COLOR = pixels(1, (8, 8))[0], pixels(1, (8, 8, 3))[0]
DAMAGED = "It is damaged, cut short or none of PNG, JPEG, WEBP, BMP, GIF: replace or remove it"


def saved(mode, form="PNG", size=(8, 8), **options):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, form, **options)
    return stream.getvalue()


def png_header(width, height):
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
    return start + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IDAT" + bytes(4)


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("contents", "shape"),
    [
        ([encode(COLOR)], (1, 8, 8, 3)),
        ([saved("CMYK", "JPEG")], (1, 8, 8, 3)),
        (
            [saved("P", "GIF", save_all=True, append_images=[Image.new("P", (8, 8), 9)])],
            (1, 8, 8, 3),
        ),
        ([saved("1")], (1, 8, 8, 1)),
        ([saved("P", transparency=0)], (1, 8, 8, 3)),
        ([saved("LA")], (1, 8, 8, 1)),
    ],
    ids=["ok", "CMYK JPEG", "animated GIF", "1 bit", "palette and alpha", "grey and alpha"],
)
def test_unusual_images_are_read(contents, shape):
    named = [Encoded(f"im{i}", content) for i, content in enumerate(contents)]
    assert decode_images(named, len(named)).shape == shape


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b""], f"im0 cannot be read as an image (cannot identify image file). {DAMAGED}"),
        ([b"some text"], f"(cannot identify image file). {DAMAGED}"),
        ([cut(encode(COLOR))], DAMAGED),
        ([scratched(pixels(1)[0])], "checksum"),
        ([cut(encode(pixels(1)[0], "JPEG"))], "image file is truncated ("),
        (
            [encode(np.full((3, 3), 999, np.uint16))],
            "im0 cannot be read as an image (it has more than 8 bits per channel, Pillow's mode "
            "I;16). Save it with 8 bits per channel.",
        ),
        ([saved("RGB", "TIFF")], DAMAGED),
        ([b"<svg xmlns='http://www.w3.org/2000/svg'/>"], DAMAGED),
        ([saved("RGB", "EPS")], DAMAGED),
        (
            [encode(COLOR), encode(GREY)],
            "Grey and color images are mixed: im0 is rgb, im1 is grey. Pass color=",
        ),
        (
            [encode(GREY), encode(pixels(1, (9, 9))[0])],
            "Images differ in size (height x width): im0 is 8 x 8, im1 is 9 x 9. Pass image_size=",
        ),
        (
            [png_header(100_000, 100_000)],
            "im0 cannot be read as an image (Image size (10000000000 pixels) exceeds limit of "
            "178956970 pixels, could be decompression bomb DOS attack). Make it smaller, or",
        ),
        (
            [png_header(13_000, 13_000)],
            "im0 cannot be read as an image (13000 x 13000 pixels take about 338 MB of memory, "
            "more than the limit of 200 MB; to raise it, set the environment variable "
            "NEARWISE_IMAGE_MEMORY=338). Make it smaller, or remove it.",
        ),
    ],
    ids=[
        "empty", "text", "PNG cut", "PNG scratched", "JPEG cut", "16-bit PNG", "TIFF", "SVG", "EPS",
        "grey and color", "two sizes", "PNG of 10^10 pixels", "PNG of 13,000 x 13,000",
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_what_to_do(contents, message):
    named = [Encoded(f"im{i}", content) for i, content in enumerate(contents)]
    with pytest.raises(ValueError) as caught:
        decode_images(named, len(named))
    assert message in str(caught.value)


def test_a_pipe_a_device_and_a_missing_file_are_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "gone.png").symlink_to("nowhere")
    with pytest.raises(ValueError) as caught:
        read_images(tmp_path)
    for name, reason in (
        ("pipe.png", "it is not a regular file"),
        ("device.png", "it is not a regular file"),
        ("gone.png", "No such file or directory"),
    ):
        assert f"{tmp_path / name} ({reason})" in str(caught.value)


def test_a_file_larger_than_the_limit_is_not_even_read(tmp_path):
    with open(tmp_path / "holes.png", "wb") as stream:
        stream.truncate(50_000_000_000)
    with pytest.raises(ValueError, match="the file takes about 50,000 MB of memory, more than"):
        read_images(tmp_path)


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("NEARWISE_IMAGE_MEMORY", "2 GB")
    with pytest.raises(ValueError, match="'2 GB' is not a number of megabytes"):
        decode_images([Encoded("im0", encode(COLOR))], 1)


def test_large_images_are_left_out_where_damaged_ones_are(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARWISE_IMAGE_MEMORY", "1")
    for name, image in (
        ("a/small", COLOR),
        ("b/small", COLOR),
        ("b/wide", pixels(1, (300, 900))[0]),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(encode(image))
    asked = {"color": "rgb", "skip_damaged": True}
    with pytest.warns(UserWarning, match=r"wide\.png .*300 x 900 pixels .* 1 of 3 left out"):
        assert len(load_image_folder(tmp_path, **asked)) == 2


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "1"])
@pytest.mark.parametrize(("size", "color"), [(None, "rgb"), ((40, 50), "grey")], ids=str)
def test_an_image_converted_in_pieces_is_the_image_converted_whole(mode, size, color):
    whole = Image.fromarray(pixels(1, (520, 600, 3))[0]).convert(mode)
    if mode == "RGBA":
        whole.putalpha(Image.fromarray(pixels(1, (520, 600), seed=1)[0]))
    stream = io.BytesIO()
    whole.save(stream, "PNG")
    X = decode_images([Encoded("im0", stream.getvalue())], 1, image_size=size, color=color)
    if mode == "RGBA":
        whole = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    expected = whole.convert("RGB" if color == "rgb" else "L")
    if size is not None:
        expected = expected.resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(X.squeeze(), np.asarray(expected))


def test_who_asks_for_more_memory_than_is_free_waits_until_it_is():
    room = Room(30_000_000)
    together, most = [], []

    def work():
        for _ in range(20):
            with room.take(14_000_000):
                together.append(1)
                most.append(len(together))
                together.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert max(most) <= 2


only_linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read from /proc"
)
LIMIT = 30  # MB
TURNED = Image.Exif()
TURNED[0x0112] = 6
KINDS = {
    "rgb.png": {"form": "PNG"},
    "palette.png": {"mode": "P", "form": "PNG", "transparency": 0},
    "alpha.png": {"mode": "RGBA", "form": "PNG"},
    "rgb.jpg": {"form": "JPEG"},
    "turned.jpg": {"form": "JPEG", "exif": TURNED},
    "progressive.jpg": {"form": "JPEG", "progressive": True, "subsampling": 0},
    "cmyk.jpg": {"form": "JPEG", "mode": "CMYK"},
    "rgb.webp": {"form": "WEBP", "method": 0},
    "rgb.gif": {"form": "GIF"},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Decode files in new processes: results, and peaks and plans in MB, by name and size.

    Of two processes the lower peak counts: what the allocator still held back differs.
    """
    folder = tmp_path_factory.mktemp("large")
    for name, options in KINDS.items():
        whole = {"mode": "RGB", "size": (1500, 1100)} | options
        (folder / name).write_bytes(saved(**whole))
    (folder / "bomb.png").write_bytes(saved("1", size=(13_000, 13_000)))
    (folder / "large.jpg").write_bytes(saved("RGB", "JPEG", size=(3200, 3200)))
    (folder / "many.png").write_bytes(saved("RGB", size=(2600, 2600)))
    asked = [(name, size) for name in KINDS for size in (None, 32)]
    asked += [("bomb.png", 8), ("large.jpg", 64), ("many.png", 8)]
    cases = [
        [[str(folder / name)] * (8 if name == "many.png" else 1), size] for name, size in asked
    ]
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("image_memory.py")]
    environment = os.environ | {"NEARWISE_IMAGE_MEMORY": str(LIMIT)}
    common = {"input": json.dumps(cases), "env": environment, "text": True, "timeout": 120}
    outputs = [
        subprocess.run(command, capture_output=True, check=True, **common).stdout for _ in range(2)
    ]
    pairs = zip(*map(json.loads, outputs), strict=True)
    return dict(zip(asked, (min(pair, key=lambda one: one["peak"]) for pair in pairs), strict=True))


@only_linux
@pytest.mark.parametrize("size", [None, 32])
@pytest.mark.parametrize("name", KINDS)
def test_decoding_takes_no_more_memory_than_planned(measured, name, size):
    one = measured[name, size]
    assert one["result"] == [1, *((1100, 1500) if size is None else (size, size)), 3] or (
        name == "turned.jpg" and size is None and one["result"] == [1, 1500, 1100, 3]
    )
    assert one["peak"] < one["planned"] + 8  # the pieces that are converted, and the file


@only_linux
def test_a_bomb_is_refused_before_it_takes_memory(measured):
    one = measured["bomb.png", 8]
    assert "13000 x 13000 pixels take about 338 MB" in one["result"]
    assert one["peak"] < 8


@only_linux
def test_a_jpeg_beyond_the_limit_is_decoded_smaller_where_it_is_resized_anyway(measured):
    one = measured["large.jpg", 64]
    assert one["result"] == [1, 64, 64, 3]
    assert one["peak"] < 8


@only_linux
def test_many_large_images_share_the_limit(measured):
    one = measured["many.png", 8]
    assert one["result"] == [8, 8, 8, 3]
    assert one["planned"] == pytest.approx(27, abs=0.1)  # so never two at a time
    assert one["peak"] < 2 * LIMIT  # one at a time; eight at once would take 216
