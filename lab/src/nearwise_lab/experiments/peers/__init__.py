"""Higher peers: tuned boosting, stacks and networks for tables."""
