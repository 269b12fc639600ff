"""The page in Chromium, used as a person would: each view, both widths, light and dark."""

from contextlib import contextmanager

import numpy as np
import pytest

from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor, LiveModel
from nearwise.serve.keys import make_key, read_keys
from tests.browser import no_serious_findings
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import served
from tests.store.folders import small_table

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)>"


@contextmanager
def opened(browser, base, width=1400, scheme="light"):
    """A page whose every mistake fails the test: console, faults, requests to other hosts."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wrong, expected = [], []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((base, "data:")) else wrong.append(r.url))
    page.expected = expected
    try:
        yield page
    finally:
        page.close()
    assert [one for one in wrong if not any(known in one for known in expected)] == []


def fits(page):
    """Whether nothing but regions that scroll is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    frame, y = small_table(160)
    frame = frame.assign(note=np.where(np.arange(160) % 5 == 0, HOSTILE, "plain"))
    y = y.copy()
    y[10] = "no" if y[10] == "yes" else "yes"
    folder = tmp_path_factory.mktemp("page") / "table.model"
    AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y).save(folder)
    return folder


def answered(page):
    page.wait_for_selector("#answer:not(.stale) .near")
    return page.locator("#answer .answer").inner_text()


def test_an_answer_is_a_link_with_its_switches_and_back_works(browser, table):
    with served(table) as base, opened(browser, base) as page:
        page.goto(f"{base}/page/ask")
        page.get_by_label("age", exact=True).fill("0.5")
        page.get_by_label("town").select_option("Lima")
        page.get_by_role("button", name="Ask", exact=True).first.click()
        first = answered(page)
        page.wait_for_url("**/page/ask?given=*")
        page.locator("input[name=off]").nth(1).check()
        page.wait_for_url("**off=*")
        changed, link = answered(page), page.url
        assert "with these changes" in changed
        page.goto(f"{base}/page/ask?row=3")
        row = answered(page)
        page.get_by_role("button", name="Next").click()
        page.wait_for_url("**row=4")
        assert page.evaluate("document.activeElement.id") == "next"  # to be pressed again
        page.go_back()
        page.wait_for_url("**row=3")
        assert answered(page) == row
        page.goto(link)  # by another person
        page.wait_for_selector("text=with these changes")
        assert answered(page) == changed and page.url == link
        assert page.get_by_label("town").input_value() != ""
        page.go_back()
        page.goto(link.partition("&off")[0])
        assert answered(page) == first
        assert page.title().startswith("Ask \u00b7 model")


def test_a_value_beyond_all_rows_or_that_is_no_number_is_said_at_its_field(browser, table):
    with served(table) as base, opened(browser, base) as page:
        page.expected.append("422")
        page.goto(f"{base}/page/ask?row=3")
        answered(page)
        age = page.get_by_label("age", exact=True)
        assert page.locator(".fields p", has=age).locator("line.own").count() == 1
        assert page.locator(".fields p", has=age).locator("line.near").count() > 3
        age.fill("1e9")
        page.wait_for_selector("text=Above all known rows")
        assert page.locator("#answer.stale").count() == 1  # of another row
        age.fill("abc")
        page.get_by_role("button", name="Ask", exact=True).first.click()
        page.wait_for_selector("[aria-invalid=true]")
        assert "'abc' is not a number" in page.locator(".fields").inner_text()
        assert page.evaluate("document.activeElement.dataset.column") == "age"
        age.fill("0.5")
        page.get_by_role("button", name="Ask", exact=True).first.click()
        answered(page)  # the former one is no longer faint
        assert page.locator("[aria-invalid]").count() == 0
        page.get_by_text("Ask this elsewhere").click()
        page.get_by_role("button", name="Copy curl").click()
        page.wait_for_selector("text=Copied")
        assert "/explain" in page.evaluate("navigator.clipboard.readText()")
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # http
        page.get_by_role("button", name="Copy Python").click()
        page.wait_for_selector("#problem >> text=copy it by hand")


def test_an_error_at_a_field_without_a_histogram_goes_with_the_next_input(browser, tmp_path):
    X, _ = small_table(60)
    model = AttnKNNRegressor(preset="instant", estimator=None, random_state=0)
    model.fit(X.assign(same=1.0), np.arange(60.0)).save(tmp_path / "m")
    with served(tmp_path / "m") as base, opened(browser, base) as page:
        page.expected.append("422")
        page.goto(f"{base}/page/ask")
        page.get_by_label("same").fill("abc")
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_selector("text='abc' is not a number")
        page.get_by_label("same").fill("1")
        assert page.get_by_text("'abc' is not a number").locator("visible=true").count() == 1
        page.get_by_role("button", name="Ask", exact=True).click()
        answered(page)
        page.get_by_label("Target", exact=True).fill("7")
        page.get_by_role("button", name="Remember this row").dblclick()
        page.wait_for_selector("text=Remembered as row 60")
    assert len(LiveModel(tmp_path / "m").history()) == 1  # once


@pytest.mark.parametrize("address", ["ask?row=999999", "ask?row=x", "review?kind=none"])
def test_a_view_that_cannot_be_shown_leads_to_its_start(browser, table, address):
    with served(table) as base, opened(browser, base) as page:
        page.expected += ["404", "422"]
        page.goto(f"{base}/page/{address}")
        page.get_by_role("link", name="Start again").click()
        page.wait_for_selector("#question, #queue")
        assert page.get_by_text("Start again").count() == 0
        page.goto(f"{base}/page/ask?given={{")  # cut off
        page.wait_for_selector("#question")


LOOKS = pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])


@LOOKS
def test_the_start_page_leads_to_what_it_names(browser, table, width, scheme):
    with served(table) as base, opened(browser, base, width, scheme) as page:
        page.goto(base)
        page.wait_for_selector(".thing")
        page.wait_for_selector("text=predicted without their labels")
        assert page.title() == "Start \u00b7 model"
        no_serious_findings(page)
        assert fits(page)
        page.locator(".thing").first.click()
        page.wait_for_url("**/page/review?kind=label")


@LOOKS
def test_asking_shows_neighbors_and_what_would_be(browser, table, width, scheme):
    with served(table) as base, opened(browser, base, width, scheme) as page:
        page.goto(f"{base}/page/ask")
        page.get_by_label("age").fill("0.5")
        page.get_by_label("town").select_option("Lima")
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_selector("#answer .near")
        sure = page.locator("#answer .chip").first.inner_text()
        box = page.locator("input[name=off]").first
        box.focus()
        page.keyboard.press("Space")  # the keyboard alone
        page.wait_for_selector("text=with these changes")
        assert page.locator("input[name=off]").first.is_checked()
        page.get_by_role("button", name="As it is").click()
        page.wait_for_selector("text=with these changes", state="detached")
        assert page.locator("#answer .chip").first.inner_text() == sure
        page.locator("input[name=off]").last.scroll_into_view_if_needed()
        page.locator("input[name=off]").first.check()
        page.wait_for_selector("text=with these changes")
        line = page.locator("#answer > .answer")
        assert "points" in line.inner_text()
        box = line.bounding_box()  # the effect is in sight
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900
        page.get_by_label("age").fill("0.75")  # another question: nothing is switched off in it
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_selector("text=with these changes", state="detached")
        page.get_by_role("button", name="Pick one at random").click()
        page.wait_for_selector("text=left out of its own neighbors")
        page.get_by_label("age").fill("0.25")  # no longer that row
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_selector("text=left out of its own neighbors", state="detached")
        no_serious_findings(page)
        assert fits(page)


def test_a_service_that_gets_ready_says_so_in_the_header(browser, table):
    with served(table) as base, opened(browser, base) as page:
        step = '{"ready": true, "getting_ready": {"step": "a step", "progress": 0.4}}'
        page.route("**/v2/health/ready", lambda route: route.fulfill(body=step))
        page.goto(f"{base}/page/ask")
        page.wait_for_selector("header >> text=Getting ready (40 % done): a step")
        page.unroute("**/v2/health/ready")
        page.wait_for_selector("#ready", state="hidden")


def test_trust_fits_a_phone_whatever_the_number_of_classes(browser, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 12
    X = rng.normal(size=(300, 6)) + y[:, None] * 0.05  # sets of many sizes
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, y).save(tmp_path / "many.model")
    with served(tmp_path / "many.model") as base, opened(browser, base, 400, "dark") as page:
        page.goto(f"{base}/page/trust")
        page.wait_for_selector("text=Share of rows by number of classes")
        assert page.locator("[aria-label='Sizes of prediction sets'] thead th").count() > 8
        assert page.locator(".confusion tbody tr").count() == 12
        assert fits(page)


def test_a_request_of_the_documentation_is_answered_as_it_stands(browser, table):
    with served(table) as base, opened(browser, base) as page:
        page.goto(f"{base}/docs")
        page.get_by_text("/predict", exact=True).click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.wait_for_selector(".live-responses-table >> text=200")
        assert "memory_version" in page.locator(".live-responses-table").inner_text()


@LOOKS
def test_trust_follows_the_slider(browser, table, width, scheme):
    with served(table) as base, opened(browser, base, width, scheme) as page:
        page.goto(f"{base}/page/trust")
        slider = page.locator("#coverage")
        slider.wait_for()
        said = page.locator("#coverage-says").inner_text()
        slider.focus()
        page.keyboard.press("Home")
        assert page.locator("#coverage-says").inner_text() != said
        at = page.locator("#risk-at").get_attribute("x1")
        page.locator("#max-risk").fill("100")  # the inverse question
        assert page.locator("#coverage-says").inner_text().startswith("100.0 %")
        assert float(page.locator("#risk-at").get_attribute("x1")) > float(at)
        assert slider.input_value() == "100"
        page.wait_for_selector("text=/worse than chance explains|its rows/")
        assert page.locator("svg.chart").count() == 2
        no_serious_findings(page)
        assert fits(page)


def test_a_key_is_asked_for_kept_for_the_tab_and_sent(browser, table, tmp_path):
    key = make_key(tmp_path / "keys.json", "one", "read")
    keys = read_keys(tmp_path / "keys.json")
    with served(table, keys=keys) as base, opened(browser, base) as page:
        page.expected.append("401")
        page.goto(f"{base}/page/ask")
        page.get_by_label("Access key").fill(key)
        page.get_by_role("button", name="Use").click()
        page.wait_for_selector("#question")


def test_an_image_is_asked_by_its_file(browser, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    images, y = patches(100)
    attn_knn(**BRIEF).fit(images, y).save(tmp_path / "images.model")
    Image.fromarray(images[40, ..., 0]).save(tmp_path / "one.png")
    with served(tmp_path / "images.model") as base, opened(browser, base) as page:
        page.goto(f"{base}/page/ask")
        page.locator("#file").set_input_files(tmp_path / "one.png")
        page.wait_for_selector("#answer .near img")
        assert page.locator("#answer img").count() == 9  # the image and its neighbors
        no_serious_findings(page)
