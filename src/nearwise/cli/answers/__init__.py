"""What a model answers, as columns and pages."""
