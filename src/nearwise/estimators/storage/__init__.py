"""A fitted classifier as a folder."""
