"""``nearwise embed``: the keys of rows as a table."""

import numpy as np
import pandas as pd

from nearwise.cli.models import open_model
from nearwise.data.tables.files import read_table


def test_keys_are_those_of_the_model_in_every_format(nearwise, trained, tables, tmp_path):
    new, parquet, npz = tables / "new.csv", tmp_path / "k.parquet", tmp_path / "k.npz"
    for out in (parquet, npz):
        assert nearwise("embed", trained, new, "--out", out, "--copy", "row").exit_code == 0
    found, arrays = pd.read_parquet(parquet), np.load(npz)
    frame = read_table(new)
    expected = open_model(trained).keys(frame.drop(columns="row"))
    np.testing.assert_allclose(arrays["X"], expected, atol=1e-6)
    np.testing.assert_allclose(found.drop(columns="row").to_numpy(), expected, atol=1e-6)
    assert list(found["row"]) == arrays["row"].tolist() == list(frame["row"])
    assert list(found.columns[1:]) == [f"e{i}" for i in range(expected.shape[1])]


def test_keys_are_a_table_for_readers_of_csv(nearwise, trained, tables):
    result = nearwise("embed", trained, tables / "new.csv", "--out", "-", "--copy", "row")
    assert result.exit_code == 0
    assert result.out.startswith("row,e0,e1")
    assert nearwise("embed", trained, tables / "new.csv", "-o", "k.png").exit_code == 2
    unknown = nearwise("embed", trained, tables / "new.csv", "-o", "-", "--space", "nowhere")
    assert unknown.exit_code == 2 and "features" in unknown.err
