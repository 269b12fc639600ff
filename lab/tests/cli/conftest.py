"""Commands of the lab are run as those of the library are."""

from tests.cli.conftest import model, nearwise, tables, trained

__all__ = ["model", "nearwise", "tables", "trained"]
