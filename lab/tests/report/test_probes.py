"""The figure of probes says which context, probe and encoder a point belongs to."""

import warnings

from matplotlib.figure import Figure
from nearwise_lab.report.probes import probe_figure


def record(encoder, probe, pool, context):
    return {
        "encoder": encoder, "probe": probe, "pool": pool, "context": context,
        "accuracy": 0.8, "intervals": {"accuracy": [0.75, 0.84]},
    }  # fmt: skip


def test_every_record_has_its_point(tmp_path, monkeypatch):
    records = [
        record(encoder, probe, pool, context)
        for encoder in ("pixels", "field")
        for context in ("full", "0.2")
        for probe, pool in (("knn", "mean"), ("knn", "flatten"), ("transformer", "tokens"))
    ]
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: drawn.append(self))
    probe_figure(records, tmp_path / "a.png", "A title")
    left, right = drawn[0].axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == (
        "whole images",
        "context 0.2",
    )
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == ["pixels\nmean", "pixels\nflatten", "field\nmean", "field\nflatten"]
    assert len(left.containers) == 8  # two probes in each of four places
    legend = [text.get_text() for text in right.get_legend().get_texts()]
    assert legend == ["knn", "transformer"]


def test_probes_that_not_every_place_has_are_in_the_legend_all_the_same(tmp_path, monkeypatch):
    records = [
        record("pixels", "knn", "mean", "full"),
        record("pixels", "linear", "mean", "full"),
        record("points", "transformer", "tokens", "0.2"),
    ]
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: drawn.append(self))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe_figure(records, tmp_path / "a.png")
    left, right = drawn[0].axes
    assert (len(left.containers), len(right.containers)) == (2, 1)
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == ["pixels\nmean", "points\ntokens"]
    legend = [text.get_text() for text in right.get_legend().get_texts()]
    assert legend == ["knn", "linear", "transformer"]
    assert left.get_ylim() == (1.5, -0.5)
