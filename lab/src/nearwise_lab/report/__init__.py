"""Records to tables, figures and one self-contained page."""

from nearwise_lab.report.demo import run_demo
from nearwise_lab.report.page import FORMATS, render_report

__all__ = ["FORMATS", "render_report", "run_demo"]
