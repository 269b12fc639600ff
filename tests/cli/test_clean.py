"""``nearwise clean`` names rows whose label looks wrong."""

import re

import pandas as pd
import pytest

from tests.estimators.cases import blobs, wrong_labels


@pytest.fixture
def table(tmp_path):
    X, y = blobs(120, 2, 3, spread=0.25)
    given = wrong_labels(y, 0.1)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=[["no", "yes"][c] for c in given])
    frame.to_csv(tmp_path / "train.csv", index=False)
    return tmp_path / "train.csv", set((given != y).nonzero()[0].tolist())


@pytest.mark.parametrize("estimate", [(), ("--noise", "auto")], ids=["at once", "estimated"])
def test_suspects_are_shown_and_written(nearwise, table, tmp_path, estimate):
    path, wrong = table
    arguments = ("-t", "kind", "--out", tmp_path / "s.csv", "--top", 3)
    result = nearwise("clean", path, *arguments, *estimate)
    assert result.exit_code == 0, result.err
    written = pd.read_csv(tmp_path / "s.csv")
    assert len(written) == 120
    assert len(wrong & set(written["id"][: len(wrong)])) >= len(wrong) - 2
    assert str(written["id"][0]) in result.out and "suggested" in result.out
    low, high = map(int, re.search(r"Wrong labels: .* \((\d+) to (\d+)\)", result.err).groups())
    assert low <= len(wrong) <= high
    n = int((written["given"] != written["suggested"]).sum())
    assert f"{n} of 120 rows have another suggested label" in " ".join(result.err.split())
    assert len(written["neighbors"][0].split()) == 5
    train = pd.read_csv(path)
    for name in ("a", "b", "c"):
        assert written[name].tolist() == train[name][written["id"]].tolist()
    assert f"{train['a'][written['id'][0]]:.6g}" in result.out


def test_columns_of_rows_that_are_called_as_those_of_the_ranking_are_written_too(
    nearwise, table, tmp_path
):
    train = pd.read_csv(table[0]).rename(columns={"a": "given", "b": "given_"})
    train.to_csv(tmp_path / "named.csv", index=False)
    arguments = ("-t", "kind", "--out", "-", "-q")
    written = nearwise("clean", tmp_path / "named.csv", *arguments).table()
    assert set(written["given"]) == {"no", "yes"}
    assert written["given_"].tolist() == train["given"][written["id"]].tolist()
    assert written["given__"].tolist() == train["given_"][written["id"]].tolist()


@pytest.mark.parametrize("noise", ["1", "-1", "much"])
def test_a_wrong_rate_is_refused_before_anything_is_read(nearwise, tmp_path, noise):
    result = nearwise("clean", tmp_path / "absent.csv", "-t", "kind", f"--noise={noise}")
    assert result.exit_code == 2 and "--noise" in result.err
