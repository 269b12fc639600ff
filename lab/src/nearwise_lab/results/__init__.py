"""Measures of predictions, and galleries of rows."""

from nearwise.conditions import require_extra

require_extra("A page of results", "figures", "matplotlib", of="nearwise-lab")
