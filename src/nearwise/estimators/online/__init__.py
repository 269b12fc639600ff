"""Changes of a fitted model: rows added, removed or relabeled after the fit."""
