"""The protocol of `nearwise probe`: encoders and probes compared on the same rows."""

from nearwise.lab.probing.data import LabeledImages, ProbeData, probe_data, without_seen
from nearwise.lab.probing.paired import paired_differences
from nearwise.lab.probing.protocol import evaluate
from nearwise.lab.probing.records import read_records

__all__ = [
    "LabeledImages",
    "ProbeData",
    "evaluate",
    "paired_differences",
    "probe_data",
    "read_records",
    "without_seen",
]
