"""Checks and encoding of user input: tables, columns, images, labels and groups."""
