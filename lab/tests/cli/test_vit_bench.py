"""Time and memory of layers on the command line."""

import json

FEW = ("--tokens", 26, "--layers", "KNNAttention", "--repeats", 2, "--batch", 1, "--device", "cpu")


def test_layers_are_timed_against_torchs_own_attention(nearwise, tmp_path):
    result = nearwise("vit", "bench", *FEW, "--no-memory", "--out", tmp_path)
    assert result.exit_code == 0
    assert "MultiHeadAttention" in result.out
    assert "KNNAttention" in result.out
    assert "B=1 N=26" in result.out
    rows = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert [row["layer"] for row in rows] == ["MultiHeadAttention", "KNNAttention"]
    for row in rows:
        for what in ("forward", "forward_backward"):
            own = row[what]
            assert 0 < own["low_ms"] <= own["median_ms"] <= own["high_ms"]
    assert rows[0]["forward"]["ratio"] == 1
    assert (tmp_path / "bench.png").stat().st_size > 1000
    conditions = json.loads((tmp_path / "bench.json").read_text())
    assert conditions["versions"]["torch"]
    assert conditions["hardware"]["processor"]
    assert str(tmp_path.parent) not in json.dumps(conditions["hardware"])


def test_a_run_that_was_stopped_goes_on(nearwise, tmp_path):
    nearwise("vit", "bench", *FEW, "--no-memory", "--out", tmp_path)
    file = tmp_path / "bench.jsonl"
    before = file.read_text()
    file.write_text(before + '{"key": {"kind": "ti')  # cut off while it was written
    again = nearwise("vit", "bench", *FEW, "--no-memory", "--out", tmp_path)
    assert again.exit_code == 0
    assert file.read_text() == before
    nearwise("vit", "bench", *FEW, "-k", 3, "--no-memory", "--out", tmp_path)
    assert len(file.read_text().splitlines()) == 2 * len(before.splitlines())


def test_mistakes_are_named(nearwise, tmp_path):
    (tmp_path / "bench.jsonl").write_text('{"other": 1}\n')
    for arguments, message in (
        (("--layers", "KNAttention"), "Did you mean 'KNNAttention'"),
        (("--tokens", "8,x"), "must be positive numbers"),
        (("--tokens", "5"), "n_neighbors=9 must lie between 1 and the 5 tokens"),
        (("--tokens", "16", "--heads", 5), "does not divide --dim 192"),
        (("--tokens", "16", "--repeats", 1), "--repeats 1 must be at least 2"),
        (("--threads", 0), "--threads 0 must be at least 1"),
        (("--out", tmp_path), "is not a file of results"),
    ):
        result = nearwise("vit", "bench", "--device", "cpu", *arguments)
        assert result.exit_code == 2
        assert message in result.err
