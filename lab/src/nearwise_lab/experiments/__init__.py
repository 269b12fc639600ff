"""Experiments: named methods compared on the same splits, a folder of records out."""

from nearwise_lab.experiments.compare import compare
from nearwise_lab.experiments.methods import HIGHER_PEERS, METHODS, PEERS, Method, get_method
from nearwise_lab.records import Record, RecordsError, read_records

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
