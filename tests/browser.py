"""What pages are checked for in Chromium."""

import pytest


def no_serious_findings(page):
    """Have axe-core look for barriers to people who cannot see, point or tell colors apart."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason='needs the extra "browser"'
    )
    found = axe.Axe().run(page)
    serious = [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
