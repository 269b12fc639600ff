"""Report of the comparison of representations: verdicts, tables, figures, maps."""

from nearwise.report.representations.document import FORMATS, comparison_document, write_report
from nearwise.report.representations.findings import Evidence, Hypothesis, judge_all

__all__ = [
    "FORMATS",
    "Evidence",
    "Hypothesis",
    "comparison_document",
    "judge_all",
    "write_report",
]
