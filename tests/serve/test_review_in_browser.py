"""The queue of a review in Chromium, used by the keyboard alone."""

import json

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.serve.keys import make_key, read_keys
from tests.browser import no_serious_findings
from tests.serve.conftest import served, until
from tests.serve.test_page_in_browser import LOOKS, fits, opened

pytestmark = pytest.mark.slow
LONG = [f"class {letter} with a name that is as long as people give " * 2 for letter in "abcdefgh"]


@pytest.fixture
def folder(tmp_path):
    """A model of eight classes with long names and 30 wrong labels."""
    rng = np.random.default_rng(0)
    code = np.arange(320) % 8
    X = pd.DataFrame(rng.normal(size=(320, 8)) + 5 * np.eye(8)[code]).add_prefix("column ")
    given = code.copy()
    given[:30] = (code[:30] + 1) % 8
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, np.array(LONG)[given]).save(tmp_path / "long.model")
    return tmp_path / "long.model"


def after(page, act):
    """Do something that shows another case or list, and wait until that takes keys."""
    page.evaluate("document.getElementById('queue').dataset.old = 'yes'")
    act()
    page.wait_for_selector("#queue[data-seen]:not([data-old])")


def press(page, key):
    after(page, lambda: page.keyboard.press(key))


def row_of(page):
    return int(page.locator("#case").inner_text().split(":")[0].removeprefix("Row "))


@LOOKS
def test_twenty_rows_are_decided_and_undone_by_the_keyboard_alone(browser, folder, width, scheme):
    with served(folder) as base, opened(browser, base, width, scheme) as page:
        page.goto(f"{base}/page/review?kind=label")
        page.wait_for_selector("#queue[data-seen]")
        no_serious_findings(page)
        assert fits(page)
        seen = []
        for _ in range(20):
            seen.append(row_of(page))
            press(page, "a")
            assert page.evaluate("document.activeElement.id") == "case"
        assert len(set(seen)) == 20 and row_of(page) not in seen
        assert "20 of" in page.locator(".progress").inner_text()
        said = page.locator("#review-says").inner_text()
        assert f"Row {seen[-1]}: relabeled" in said and f"Row {row_of(page)}:" in said
        page.wait_for_selector("#effect >> text=that none of them touched")
        for row in reversed(seen):
            press(page, "u")
            assert row_of(page) == row
        assert [one.kind for one in LiveModel(folder).history()] == ["relabel"] * 40
        assert page.locator("[data-key=u]").is_disabled()


def test_keys_keep_relabel_move_and_do_not_fire_in_fields(browser, folder):
    with served(folder) as base, opened(browser, base) as page:
        page.goto(f"{base}/page/review?kind=label")
        page.wait_for_selector("#queue[data-seen]")
        first = row_of(page)
        press(page, "k")
        second = row_of(page)
        page.keyboard.press("r")
        assert page.evaluate("document.activeElement.id") == "label"
        page.keyboard.press("k")  # typed into the field
        page.keyboard.press("Home")
        press(page, "Enter")
        changes = LiveModel(folder).history()
        assert [(one.kind, one.ids) for one in changes] == [
            ("keep", (first,)),
            ("relabel", (second,)),
        ]
        third = row_of(page)
        press(page, "j")
        fourth = row_of(page)
        press(page, "ArrowLeft")
        assert row_of(page) == third
        press(page, "x")
        assert LiveModel(folder).history()[-1].kind == "remove" and row_of(page) == fourth
        page.keyboard.press("?")
        assert page.evaluate("document.getElementById('keys').open")


def test_filters_and_cases_have_addresses_that_back_returns_to(browser, folder):
    with served(folder) as base, opened(browser, base) as page:
        page.goto(f"{base}/page/review")
        page.wait_for_selector("#queue[data-seen]")
        press(page, "j")
        row, address = row_of(page), page.url
        assert f"row={row}" in address
        after(page, page.get_by_role("link", name="labels that disagree").click)
        assert "labels" in page.locator("[aria-current=true]").nth(-1).inner_text()
        after(page, page.locator(".pairs a").first.click)
        assert page.locator(".pairs a[aria-current=true]").count() == 1
        after(page, page.go_back)
        assert page.locator(".pairs a[aria-current=true]").count() == 0
        after(page, page.go_back)
        assert (row_of(page), page.url) == (row, address)
        page.goto(address)  # as by a link
        page.wait_for_selector("#queue[data-seen]")
        assert row_of(page) == row


@LOOKS
def test_rows_chosen_on_the_map_are_decided_at_once(browser, folder, width, scheme):
    with served(folder) as base, opened(browser, base, width, scheme) as page:
        page.goto(f"{base}/page/review")
        chosen = json.dumps([3, 4, 5, 6])
        page.evaluate("ids => sessionStorage.setItem('nearwise-selection', ids)", chosen)
        page.goto(f"{base}/page/review?kind=selection&view=list")
        page.get_by_label("All on this page").check()
        assert page.locator("#chosen").inner_text() == "4 chosen"
        page.locator("input[name=ids]").first.uncheck()
        assert not page.get_by_label("All on this page").is_checked()
        page.get_by_label("All on this page").check()
        no_serious_findings(page)
        assert fits(page)
        page.get_by_role("button", name="Remove").click()
        page.wait_for_selector("text=4 rows: removed.")
        (change,) = LiveModel(folder).history()
        assert set(change.ids) == {3, 4, 5, 6}
        page.get_by_role("button", name="Undo").click()
        page.wait_for_selector("text=Undone: 4 rows.")


def test_findings_are_downloaded_with_a_key(browser, folder, tmp_path):
    key = make_key(tmp_path / "keys.json", "one", "read")
    keys = read_keys(tmp_path / "keys.json")
    with served(folder, keys=keys) as base, opened(browser, base) as page:
        page.expected.append("401")
        page.goto(f"{base}/page/review")
        page.get_by_label("Access key").fill(key)
        page.get_by_role("button", name="Use").click()
        page.wait_for_selector("#queue[data-seen]")
        assert page.locator("#decision, #undo").count() == 0  # a key that reads
        with page.expect_download() as download:
            page.get_by_role("button", name="Export CSV").click()
        until(lambda: download.value.path())
        assert "kind,id,given,suggested" in download.value.path().read_text()


def test_a_service_that_is_away_is_told_in_sight_and_forgets_no_undo(browser, folder):
    with served(folder) as base, opened(browser, base) as page:
        page.expected += ["ERR_FAILED", "htmx:sendError", "htmx:afterRequest", "422"]
        page.goto(f"{base}/page/review?kind=label")
        page.wait_for_selector("#queue[data-seen]")
        row = row_of(page)
        press(page, "k")
        page.route("**/page/review/*", lambda route: route.abort())
        for act in (lambda: page.keyboard.press("u"), page.locator("#export").click):
            act()
            page.wait_for_selector("#problem >> text=The service cannot be reached")
            page.evaluate("tell('')")
        page.unroute("**/page/review/*")
        press(page, "u")
        assert row_of(page) == row
        page.goto(f"{base}/page/review?kind=label&view=list")
        page.get_by_role("button", name="Keep").scroll_into_view_if_needed()
        page.evaluate("scrollTo(0, 9999)")
        page.evaluate("document.querySelector('button[value=keep]').click()")
        page.wait_for_selector("#problem >> text=Choose between 1 and 500")
        assert page.evaluate("scrollY > 100")
        assert page.locator("#problem").bounding_box()["y"] >= 0
