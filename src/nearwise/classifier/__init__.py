"""The scikit-learn contract: AttnKNNClassifier and what it composes."""

from nearwise.classifier.classifier import AttnKNNClassifier
from nearwise.classifier.inputs.columns import ColumnReport, ColumnWarning
from nearwise.classifier.inputs.sources import report_columns
from nearwise.classifier.live import LiveModel
from nearwise.classifier.model.fitted_model import FitReport
from nearwise.classifier.model.learned_rows import LearnedRows
from nearwise.classifier.noise.review import Review, review
from nearwise.classifier.noise.transition import audited_transition
from nearwise.classifier.query import Query
from nearwise.classifier.settings import Settings
from nearwise.classifier.stored.moving import move_memory
from nearwise.classifier.uncertainty.explain import Explanation, Neighbor, Parts
from nearwise.classifier.uncertainty.selective import Selection
from nearwise.warn import RowsWarning

__all__ = [
    "AttnKNNClassifier",
    "ColumnReport",
    "ColumnWarning",
    "Explanation",
    "FitReport",
    "LearnedRows",
    "LiveModel",
    "Neighbor",
    "Parts",
    "Query",
    "Review",
    "RowsWarning",
    "Selection",
    "Settings",
    "audited_transition",
    "move_memory",
    "report_columns",
    "review",
]
