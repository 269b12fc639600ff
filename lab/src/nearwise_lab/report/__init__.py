"""One reporter: records of any kind of folder become a document, and the document files."""

from nearwise_lab.report.demo import run_demo
from nearwise_lab.report.render import render_report
from nearwise_lab.report.writers import FORMATS

__all__ = ["FORMATS", "render_report", "run_demo"]
