"""Data that only experiments read."""
