"""Confidence of a retriever: the probability that a list holds the answer."""

from nearwise_lab.retrieval.confidence import RetrievalConfidence, first_relevant

__all__ = ["RetrievalConfidence", "first_relevant"]
