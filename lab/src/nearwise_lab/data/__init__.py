"""Data sets by name, found or downloaded, for experiments, benchmarks and the demo."""

from nearwise_lab.data.describe import DatasetSummary, describe_dataset
from nearwise_lab.data.human import load_human_labels
from nearwise_lab.data.images import load_images
from nearwise_lab.data.registry import dataset_names, load_dataset

__all__ = [
    "DatasetSummary",
    "dataset_names",
    "describe_dataset",
    "load_dataset",
    "load_human_labels",
    "load_images",
]
