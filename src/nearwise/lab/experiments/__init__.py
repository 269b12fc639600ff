"""Experiments: named methods compared on the same splits, a folder of records out."""

from nearwise.lab.experiments.compare import compare
from nearwise.lab.experiments.methods import HIGHER_PEERS, METHODS, PEERS, Method, get_method
from nearwise.lab.experiments.records import Record, RecordsError, read_records

__all__ = [
    "HIGHER_PEERS",
    "METHODS",
    "PEERS",
    "Method",
    "Record",
    "RecordsError",
    "compare",
    "get_method",
    "read_records",
]
