"""Data sets: one registry, tables in and out, splits, label noise and long tails."""

from nearwise.data.corrupt import label_noise, long_tail
from nearwise.data.dataset import Dataset
from nearwise.data.describe import DatasetSummary, describe_dataset
from nearwise.data.registry import dataset_names, load_dataset
from nearwise.data.split import split_dataset
from nearwise.data.tables import read_table, write_table

__all__ = [
    "Dataset",
    "DatasetSummary",
    "dataset_names",
    "describe_dataset",
    "label_noise",
    "load_dataset",
    "long_tail",
    "read_table",
    "split_dataset",
    "write_table",
]
