"""The scikit-learn contract: AttnKNNClassifier and what it composes."""

from nearwise.estimators.classifier import AttnKNNClassifier
from nearwise.estimators.column_report import ColumnReport, ColumnWarning
from nearwise.estimators.columns import report_columns
from nearwise.estimators.explain import Explanation, Neighbor, Parts
from nearwise.estimators.few_shot import FewShotAttention
from nearwise.estimators.learned_rows import LearnedRows
from nearwise.estimators.retrieval import RetrievalConfidence
from nearwise.estimators.selective import Selection
from nearwise.estimators.transition import audited_transition

__all__ = [
    "AttnKNNClassifier",
    "ColumnReport",
    "ColumnWarning",
    "Explanation",
    "FewShotAttention",
    "LearnedRows",
    "Neighbor",
    "Parts",
    "RetrievalConfidence",
    "Selection",
    "audited_transition",
    "report_columns",
]
