"""Higher peers: tuned boosting, stacks, networks for tables and foundation models."""
