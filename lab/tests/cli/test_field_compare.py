"""nearwise field compare: a slice end to end, and what it refuses."""

import pytest

SLICE = (
    "field", "compare", "--probes", "knn", "--arms", "pixels,full", "--limit", "120,60",
    "--set", "epochs=1", "--set", "finetune_epochs=1", "--set", "draws=1", "--set", "map_rows=50",
    "--set", "pooling=false", "--set", "protocol=false", "--set", "field.batch_size=32", "-q",
)  # fmt: skip


@pytest.mark.slow
def test_a_slice_is_compared_and_reported(nearwise, tmp_path):
    done = nearwise(*SLICE, "--context", "full", "--out", tmp_path)
    assert done.exit_code == 0, done.err
    shown = done.out
    assert "original pixels" in shown and "full baseline" in shown
    assert "H1, full: not measured" in shown
    assert "Test accuracy. One seed (0)." in shown
    names = {p.name for p in tmp_path.iterdir()}
    assert {"report.html", "report.pdf", "results.md", "comparison.json"} <= names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "half"), "half"),
        (("--set", "epoch=3"), "epochs"),
        (("--set", "field.learning_rate=1"), "learning_rate"),
        (("--limit", "100"), "TRAIN"),
        (("--arms", "dense"), "Unknown encoder 'dense'"),
        (("--seeds", "3-1"), "runs backwards"),
        (("--also", "dino"), "NAME=ENCODER"),
        (("--jobs", "many"), "--jobs 'many'"),
        (("--jobs", "0"), "--jobs '0'"),
    ],
)
def test_mistakes_are_told_in_a_line(nearwise, arguments, words, tmp_path):
    done = nearwise("field", "compare", "-o", tmp_path, *arguments)
    assert done.exit_code == 2
    assert words in done.err and "Traceback" not in done.err
