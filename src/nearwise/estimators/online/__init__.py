"""Rows that come, go or are relabelled after the fit."""
