"""The ``nearwise`` command line: a thin layer that parses, calls the library and prints."""

from nearwise.cli.app import main

__all__ = ["main"]
