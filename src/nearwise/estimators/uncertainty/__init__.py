"""Uncertainty of predictions: calibration rows, sets, abstention, novelty, explanations."""
