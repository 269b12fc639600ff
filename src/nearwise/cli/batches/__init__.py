"""Answers for more rows than one process takes: parts in a folder, made by Ray Data."""
