"""The ``nearwise`` command: thin, it parses, calls the library and prints."""

from nearwise.cli.app import main

__all__ = ["main"]
