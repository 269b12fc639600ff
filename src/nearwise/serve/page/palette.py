"""Colors of the map, for each theme.

Each of the eight hues is at least 3:1 against the paper (WCAG 1.4.11). Every pair differs by at
least `LEAST_DIFFERENCE` (CIEDE2000), also in simulated protanopia, deuteranopia and tritanopia.
The ramp is the part of viridis with that contrast, in even steps of lightness. High values stand
out more from the paper than low ones.
"""

from typing import Literal, TypedDict

LEAST_DIFFERENCE = 17.0


class Colors(TypedDict):
    """Hexadecimal colors of a theme: of classes, of a ramp from low to high, of no value."""

    paper: str
    hues: list[str]
    ramp: list[str]
    none: str


PALETTE: dict[Literal["light", "dark"], Colors] = {
    "light": {
        "paper": "#ffffff",
        "hues": [
            "#2463b5",
            "#9f0003",
            "#6d973a",
            "#ca7b9f",
            "#1594ff",
            "#5f1a2f",
            "#06287d",
            "#9a506a",
        ],
        "ramp": ["#21918c", "#2a788e", "#355f8d", "#414487", "#482475", "#440154"],
        "none": "#767c86",
    },
    "dark": {
        "paper": "#14171c",
        "hues": [
            "#7fb0f5",
            "#d10a08",
            "#96b35b",
            "#d57c9d",
            "#dff106",
            "#b82e7f",
            "#675dff",
            "#26ffbb",
        ],
        "ramp": ["#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"],
        "none": "#8b93a0",
    },
}
