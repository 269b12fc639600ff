"""The scikit-learn estimators AttnKNNClassifier and AttnKNNRegressor, and their parts."""

from nearwise.estimators.classifier import AttnKNNClassifier
from nearwise.estimators.inputs.columns import ColumnReport, ColumnWarning
from nearwise.estimators.inputs.sources import report_columns
from nearwise.estimators.live import LiveModel
from nearwise.estimators.model.fitted_model import FitReport, NumberReport
from nearwise.estimators.model.learned_rows import LearnedRows
from nearwise.estimators.noise.review import Review, review
from nearwise.estimators.noise.transition import audited_transition
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.query import Query
from nearwise.estimators.regressor import AttnKNNRegressor
from nearwise.estimators.settings import Settings
from nearwise.estimators.stored.moving import move_memory
from nearwise.estimators.uncertainty.explain import Explanation, Neighbor, Parts
from nearwise.estimators.uncertainty.explanations import Explanations
from nearwise.estimators.uncertainty.number_explain import NumberExplanation, NumberNeighbor
from nearwise.estimators.uncertainty.number_selective import NumberSelection
from nearwise.estimators.uncertainty.selective import Selection
from nearwise.warn import RowsWarning

__all__ = [
    "AttnKNNClassifier",
    "AttnKNNRegressor",
    "ColumnReport",
    "ColumnWarning",
    "Explanation",
    "Explanations",
    "FitReport",
    "LearnedRows",
    "LiveModel",
    "Neighbor",
    "NumberExplanation",
    "NumberNeighbor",
    "NumberQuery",
    "NumberReport",
    "NumberSelection",
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
