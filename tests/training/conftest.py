"""What several tests of training switch off."""

import pytest


@pytest.fixture
def plain_start(monkeypatch):
    """Start from the network's own scale: with a fitted one little would be left to learn."""
    monkeypatch.setattr("nearwise.training.embedder.fit_start_scale", lambda *given: None)
