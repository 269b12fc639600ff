"""Warnings are noise here but where a test asks for them."""

import pytest


def pytest_itemcollected(item):
    item.add_marker(pytest.mark.filterwarnings("ignore"))
