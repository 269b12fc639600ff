"""Colors of the map are told apart in both themes, also by people who see fewer hues."""

import itertools
import math

import numpy as np
import pytest

from nearwise.serve.page.palette import LEAST_DIFFERENCE, PALETTE

# Severity 1.0 of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
# Color Vision Deficiency", IEEE TVCG 2009, table 1; of linear RGB.
SEEN_BY = {
    "anyone": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
]
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


def linear(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(one, other):
    light, dark = sorted(
        (np.dot(linear(color), [0.2126, 0.7152, 0.0722]) for color in (one, other)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def lab(color, seen_by="anyone"):
    seen = np.clip(np.dot(SEEN_BY[seen_by], linear(color)), 0, 1)
    xyz = np.dot(TO_XYZ, seen) / [0.95047, 1.0, 1.08883]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else t * 841 / 108 + 4 / 29 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Color difference; Sharma, Wu and Dalal, Color Research and Application 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    c7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    g = 0.5 * (1 - math.sqrt(c7 / (c7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    hm = h1 + h2 if c1 * c2 == 0 else h1 + turn / 2
    t = (
        1
        - 0.17 * math.cos(math.radians(hm - 30))
        + 0.24 * math.cos(math.radians(2 * hm))
        + 0.32 * math.cos(math.radians(3 * hm + 6))
        - 0.20 * math.cos(math.radians(4 * hm - 63))
    )
    sl = 1 + 0.015 * (lm - 50) ** 2 / math.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    spin = 30 * math.exp(-((((hm % 360) - 275) / 25) ** 2))
    rt = -math.sin(math.radians(2 * spin)) * 2 * math.sqrt(cm**7 / (cm**7 + 25**7))
    parts = dl / sl, dc / sc, dh / sh
    return math.sqrt(sum(part**2 for part in parts) + rt * parts[1] * parts[2])


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_color_difference_is_that_of_the_published_pairs(one, other, wanted):
    assert ciede2000(one, other) == pytest.approx(wanted, abs=1e-4)
    assert ciede2000(other, one) == pytest.approx(wanted, abs=1e-4)


@THEMES
@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_every_pair_of_hues_is_told_apart(theme, seen_by):
    hues = PALETTE[theme]["hues"]
    assert len(hues) == 8
    apart = {
        pair: ciede2000(*(lab(one, seen_by) for one in pair))
        for pair in itertools.combinations(hues, 2)
    }
    assert min(apart.values()) >= LEAST_DIFFERENCE, min(apart, key=apart.get)


@THEMES
def test_every_color_stands_out_from_the_paper(theme):
    colors = PALETTE[theme]
    for color in (*colors["hues"], *colors["ramp"], colors["none"]):
        assert contrast(color, colors["paper"]) >= 3, color


@THEMES
@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_the_ramp_leaves_the_paper_in_even_steps_of_lightness(theme, seen_by):
    colors = PALETTE[theme]
    away = [abs(lab(color, seen_by)[0] - lab(colors["paper"])[0]) for color in colors["ramp"]]
    steps = np.diff(away)
    assert steps.min() > 0 and steps.max() < 2.5 * steps.min()


def test_the_paper_is_that_of_the_page():
    from nearwise.serve.page.shell import _STATIC

    style = _STATIC.joinpath("page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for text, theme in ((light, "light"), (dark, "dark")):
        assert f"--paper: {PALETTE[theme]['paper']}" in text
