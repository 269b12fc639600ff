"""Figures follow the page, say what they show, and are the same every time."""

import matplotlib.figure
import numpy as np
import pytest
from nearwise_lab.report import runs
from nearwise_lab.report.charts import (
    Bars,
    Line,
    Lines,
    chart,
    prediction_pictures,
    training_picture,
)
from nearwise_lab.report.drawing import INK, picture
from nearwise_lab.results.measures import Mean, Predictions

from lab.tests.report.pages import Checker


def test_a_figure_follows_the_page_s_colors_and_gives_the_same_text():
    panels = [Bars("a & b", {"one": Mean(0.5, 0.1, 3), "none": None}),
              Lines("c", {"d": Line([(1, 2, 0.5), (2, 3, 0.5)])}, log="x")]  # fmt: skip

    def draw():
        figure = chart(panels, (5, 2), heading="A heading")
        return picture(figure, "x", 'alt "text" <here>', "a caption").svg

    svg = draw()
    assert svg == draw()
    assert "var(--ink)" in svg
    assert INK not in svg
    assert "DejaVu" not in svg
    assert "alt &quot;text&quot; &lt;here&gt;" in svg
    Checker(svg)


def test_figures_of_a_perfect_and_of_a_tiny_method():
    y = np.array([0, 1])
    sure = Predictions(y, np.eye(2)[y], np.arange(2), ["a", "b"])
    for drawn in prediction_pictures({"m": sure}, "m", "", "d"):
        Checker(drawn.svg)


def test_curves_without_epochs_are_no_picture():
    assert training_picture([{"stage": "base"}], "d", "m") is None


@pytest.fixture
def drawn(monkeypatch):
    """Figures that are saved."""
    found = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, path, **_: found.append(self)
    )
    return found


def record(encoder, probe, pool, context):
    return {
        "encoder": encoder, "probe": probe, "pool": pool, "context": context,
        "accuracy": 0.8, "intervals": {"accuracy": [0.75, 0.84]},
    }  # fmt: skip


def test_every_probe_has_its_bar(tmp_path, drawn):
    records = [
        record(encoder, probe, pool, context)
        for encoder in ("pixels", "field")
        for context in ("full", "0.2")
        for probe, pool in (("knn", "mean"), ("knn", "flatten"), ("transformer", "tokens"))
    ]
    runs.probe_figure([*records, record("pixels", "linear", "mean", "full")], tmp_path / "a.png")
    left, right = drawn[0].axes
    titles = [axis.get_title(loc="left") for axis in (left, right)]
    assert titles == ["whole images: test accuracy, %", "context 0.2: test accuracy, %"]
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names[:2] == ["pixels, mean: knn", "pixels, flatten: knn"]
    assert len(names) == len(left.patches) == 7
    assert len(right.patches) == 6  # no condition need have them all
    (ends,) = {tuple(line.get_xdata()) for line in left.lines}
    assert ends == (75.0, 84.0)


def test_training_curves_of_runs_show_each_part(tmp_path, drawn):
    epochs = [
        {"epoch": e, "train": {"loss": 1 / e, "top1": 50.0},
         "evaluation": {"test_loss": 2 / e, "test_top1": 40.0}}
        for e in (1, 2)
    ]  # fmt: skip
    runs.draw_vit_curves(epochs, tmp_path / "curves.png", "A layer")
    assert [len(axis.containers) for axis in drawn[0].axes] == [2, 2]
    steps = [{"stage": s, "step": i, "train_mse": 0.1, "mse": 0.2, "nce": 3.0}
             for i, s in enumerate("aabb")]  # fmt: skip
    runs.draw_field_curves(steps, tmp_path / "curve.png")
    names = [c.get_label() for c in drawn[1].axes[0].containers]
    assert names == ["training", "held out, all pixels", "end of a"]
