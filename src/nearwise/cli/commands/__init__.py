"""Command modules: each parses, calls the library and prints."""
