"""Report of the comparison of representations: verdicts, tables, figures, maps."""

from nearwise_lab.report.representations.document import FORMATS, comparison_document, write_report
from nearwise_lab.report.representations.findings import Evidence, Hypothesis, judge_all
from nearwise_lab.report.representations.tables import accuracy_table

__all__ = [
    "FORMATS",
    "Evidence",
    "Hypothesis",
    "accuracy_table",
    "comparison_document",
    "judge_all",
    "write_report",
]
