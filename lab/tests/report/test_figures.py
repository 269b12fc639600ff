"""Figures follow the page, and their text is the same every time."""

import numpy as np
from nearwise_lab.report.drawing import Picture, canvas, page_style, to_svg
from nearwise_lab.report.figures import reliability_diagrams, risk_coverage, training_curves
from nearwise_lab.results.measures import Predictions

from lab.tests.report.pages import Checker


def test_a_figure_follows_the_page_s_colors_and_gives_the_same_text():
    def draw():
        with page_style():
            figure, axes = canvas(2, 2)
            axes[0][0].plot([0, 1], [0, 1])
            axes[0][0].set_title("a & b")
        return to_svg(figure, "x", 'alt "text" <here>')

    svg = draw()
    assert svg == draw()
    assert "var(--ink)" in svg
    assert "#010203" not in svg
    assert "DejaVu" not in svg
    assert "alt &quot;text&quot; &lt;here&gt;" in svg
    Checker(svg)


def test_figures_of_a_perfect_and_of_a_tiny_method():
    y = np.array([0, 1])
    sure = Predictions(y, np.eye(2)[y], np.arange(2), ["a", "b"])
    for picture in (
        reliability_diagrams("d", {"m": sure}, "m"),
        risk_coverage("d", {"m": sure}, "m"),
    ):
        assert isinstance(picture, Picture)
        Checker(picture.svg)


def test_curves_without_epochs_are_no_picture():
    assert training_curves("d", "m", [{"stage": "base"}]) is None
