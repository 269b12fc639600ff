"""What a fit leaves behind: models, heads, memory; all that predicts."""
