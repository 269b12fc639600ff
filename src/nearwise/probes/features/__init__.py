"""Encoders, and the features they make."""
