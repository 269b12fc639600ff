"""Wrong labels: label model, its fit, and ranking of suspicious rows."""
