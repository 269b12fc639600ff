"""Commands of the lab are run as those of the library are."""

import matplotlib  # noqa: F401  # most commands need the extra "figures"

from tests.cli.conftest import model, nearwise, tables, trained

__all__ = ["model", "nearwise", "tables", "trained"]
