"""Data sets: reading and writing of tables, images, splits."""

from nearwise.data.contexts import Context
from nearwise.data.dataset import Dataset, hold_out, split_dataset
from nearwise.data.images.folder import load_image_folder, read_images
from nearwise.data.images.hub import image_dataset
from nearwise.data.tables.files import read_table, write_table

__all__ = [
    "Context",
    "Dataset",
    "hold_out",
    "image_dataset",
    "load_image_folder",
    "read_images",
    "read_table",
    "split_dataset",
    "write_table",
]
