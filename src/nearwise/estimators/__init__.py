"""The scikit-learn contract: AttnKNNClassifier and what it composes."""

from nearwise.estimators.classifier import AttnKNNClassifier, Parts
from nearwise.estimators.explain import Explanation, Neighbor

__all__ = ["AttnKNNClassifier", "Explanation", "Neighbor", "Parts"]
