"""Records to tables, figures and one self-contained page."""

from nearwise.lab.report.demo import run_demo
from nearwise.lab.report.page import FORMATS, render_report

__all__ = ["FORMATS", "render_report", "run_demo"]
