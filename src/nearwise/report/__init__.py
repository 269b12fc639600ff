"""Predictions as tables and figures, and the page about one model."""

from nearwise.conditions import require_extra

require_extra("A report", "report", "matplotlib", "jinja2")
