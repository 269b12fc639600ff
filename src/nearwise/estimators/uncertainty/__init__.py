"""How far to trust a prediction: calibration rows, sets, abstention, novelty, explanations."""
