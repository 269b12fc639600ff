"""Wrong labels: the label model of them, its fit, and rows to check."""
