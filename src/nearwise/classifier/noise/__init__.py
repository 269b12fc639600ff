"""Wrong labels: their transition, training targets, and rows to check."""
