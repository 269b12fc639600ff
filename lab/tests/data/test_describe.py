"""Promises of describe_dataset."""

import numpy as np
import pandas as pd
import pytest
from nearwise_lab.data import describe_dataset, load_dataset

from nearwise.data import Dataset


@pytest.mark.filterwarnings("ignore:Data set")
def test_the_counts_of_a_small_table(data_root):
    summary = describe_dataset(load_dataset("adult", data_root=data_root))
    assert (summary.n_rows, summary.n_columns, summary.n_test) == (4, 14, 0)
    assert summary.classes == {"<=50K": 2, ">50K": 2}
    assert summary.missing == {"workclass": 1, "occupation": 1, "native-country": 1}
    assert summary.categoricals["workclass"] == 2
    assert len(summary.categoricals) == 8
    assert summary.n_duplicates == 0
    assert "missing values: 3 (rows: workclass 1" in str(summary)


def test_duplicates_numbers_flags_and_text_are_told_apart():
    X = pd.DataFrame({"n": [1.0, 1.0, np.nan], "flag": [True, True, False], "t": ["a", "a", None]})
    summary = describe_dataset(Dataset("mine", X, np.arange(3), "y", "table", "here"))
    assert summary.n_duplicates == 1
    assert summary.categoricals == {"t": 1}
    assert summary.missing == {"n": 1, "t": 1}


def test_embeddings_show_their_test_part():
    X = np.zeros((3, 2), dtype=np.float32)
    dataset = Dataset(
        "mine", X, np.array([0, 1, 0]), "y", "embeddings", "here", test_index=np.array([2])
    )
    assert describe_dataset(dataset).n_test == 1
    assert "3, 1 of them the official test part" in str(describe_dataset(dataset))
