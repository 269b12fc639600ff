"""HTML of explanations, sets, trust and models, for notebooks and the page of the service."""

from nearwise.html.card import Card, Face, make_card
from nearwise.html.charts import Chart
from nearwise.html.neighbors import NeighborTable, neighbor_table
from nearwise.html.rendering import STYLE, environment, notebook, picture

__all__ = [
    "STYLE",
    "Card",
    "Chart",
    "Face",
    "NeighborTable",
    "environment",
    "make_card",
    "neighbor_table",
    "notebook",
    "picture",
]
