"""Data sets: one registry, tables in and out, images and splits."""

from nearwise.data.contexts import Context
from nearwise.data.dataset import Dataset, DatasetSummary, describe_dataset, hold_out, split_dataset
from nearwise.data.images.folder import read_images
from nearwise.data.images.hub import image_dataset
from nearwise.data.images.load import load_images
from nearwise.data.registry import dataset_names, load_dataset
from nearwise.data.tables.files import read_table, write_table

__all__ = [
    "Context",
    "Dataset",
    "DatasetSummary",
    "dataset_names",
    "describe_dataset",
    "hold_out",
    "image_dataset",
    "load_dataset",
    "load_images",
    "read_images",
    "read_table",
    "split_dataset",
    "write_table",
]
