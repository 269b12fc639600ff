"""Commands of the lab are run as those of the library are."""

import pytest

from tests.cli.conftest import model, nearwise, tables, trained

__all__ = ["model", "nearwise", "tables", "trained"]


@pytest.fixture(autouse=True)
def _figures() -> None:
    """Skip where the extra "figures" is not installed, which most commands need."""
    pytest.importorskip("matplotlib")
