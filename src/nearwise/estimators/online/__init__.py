"""Changes of a fitted model: rows added, removed or relabelled after the fit."""
