"""The map in Chromium, used by pointer, by keys and by its address."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor, LiveModel
from tests.browser import no_serious_findings
from tests.estimators.cases import attn_knn
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import served
from tests.serve.conftest import until as wait_until
from tests.serve.test_page_in_browser import LOOKS, fits, opened
from tests.serve.test_page_in_browser import table as table  # a fixture

pytestmark = pytest.mark.slow
READY = "text=/rows?.*, version/"


def shown(page, base, query=""):
    """Open the map, and wait until it is drawn."""
    page.goto(f"{base}/page/map{query}")
    page.wait_for_selector(READY)
    until(page, "map.tints !== undefined")


def until(page, holds):
    """Wait until an expression is true; the page's policy forbids Playwright's own way."""
    wait_until(lambda: page.evaluate(holds))


def dragged(page, corners, shift=False):
    """Drag along corners, in shares of the map's width and height."""
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    points = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in corners]
    if shift:
        page.keyboard.down("Shift")
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()
    if shift:
        page.keyboard.up("Shift")


ALL = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]
LEFT = [(0.01, 0.01), (0.5, 0.01), (0.5, 0.99), (0.01, 0.99)]


def summed(page):
    """Text of the summary, when all of it has come."""
    page.wait_for_selector("#map-selection .facts[aria-busy=false]")
    return page.locator("#map-selection").inner_text()


@LOOKS
def test_a_lasso_is_summed_up_beside_the_map_listed_and_handed_on(browser, table, width, scheme):
    with served(table) as base, opened(browser, base, width, scheme) as page:
        shown(page, base)
        page.get_by_role("button", name="Lasso").click()
        dragged(page, LEFT)
        text = summed(page)
        n = int(re.search(r"^(\d+) rows \(", text)[1])
        assert 0 < n < 160
        assert "Accuracy: " in text and "Mean doubt: " in text and "against" in text
        assert not page.locator("#map-tip").is_visible()
        box = page.locator("#map-selection h2").bounding_box()
        assert 0 <= box["y"] < 900  # in sight without scrolling
        no_serious_findings(page)
        assert fits(page)
        page.get_by_role("button", name="List rows").click()
        page.wait_for_selector(f"#map-rows >> text={n} rows")
        assert page.locator("#map-rows tbody tr").count() == n
        assert page.evaluate("document.activeElement.id") == "map-rows-head"
        with page.expect_download() as saved:
            page.get_by_role("button", name="Export as CSV").click()
        frame = pd.read_csv(saved.value.path())
        assert len(frame) == n and list(frame.columns[:3]) == ["id", "label", "age"]
        page.get_by_role("button", name="Review these").click()
        page.wait_for_url("**/page/review?kind=selection")
        kept = json.loads(page.evaluate("sessionStorage['nearwise-selection']"))
        assert sorted(kept) == sorted(frame["id"])


def test_back_goes_from_lasso_to_lasso_and_escape_clears(browser, table):
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        dragged(page, LEFT, shift=True)
        first = summed(page)
        dragged(page, ALL, shift=True)
        page.wait_for_selector("#map-selection >> text=160 rows (100.0 %)")
        assert "against" not in summed(page)  # there is no rest
        page.go_back()
        page.wait_for_selector(f"#map-selection >> text={first.splitlines()[0]}")
        page.keyboard.press("Escape")
        page.wait_for_selector("#map-selection", state="hidden")
        assert "lasso" not in page.url
        page.go_back()
        page.wait_for_selector(f"#map-selection >> text={first.splitlines()[0]}")
        page.get_by_role("button", name="Clear").click()
        page.wait_for_selector("#map-selection", state="hidden")
        assert page.evaluate("document.activeElement.id") == "map"


def test_a_link_opens_the_same_view(browser, table):
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        page.get_by_label("Color by").select_option("column:town")
        page.wait_for_selector("#map-legend >> text=town")
        page.locator("#map-legend button.entry", has_text="Lima").click()
        page.get_by_role("button", name="Zoom in").click()
        dragged(page, [(0.6, 0.5), (0.4, 0.4)])
        dragged(page, LEFT, shift=True)
        text, url = summed(page), page.url
        seen = page.evaluate("[map.view.x, map.view.y, map.view.zoom]")
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_selector("#map-legend >> text=town")
        assert summed(page) == text
        pressed = page.locator("#map-legend [aria-pressed=true]")
        assert pressed.count() == 1 and "Lima" in pressed.inner_text()
        again = page.evaluate("[map.view.x, map.view.y, map.view.zoom]")
        assert again == pytest.approx(seen, abs=1e-3)
        page.goto(f"{base}/page/map?color=column:none&view=x&lasso=1_y&only=z&method=umap")
        page.wait_for_selector(READY)  # what the model does not have is left out
        assert page.get_by_label("Color by").input_value() == "label"


@LOOKS
def test_every_coloring_has_its_legend(browser, table, width, scheme):
    with served(table) as base, opened(browser, base, width, scheme) as page:
        shown(page, base)
        legends = {
            "right": "right",
            "confidence": "Confidence",
            "doubt": "Doubt",
            "change": "came with the fit: 160",
            "column:age": "median",
            "column:income": "no value:",
            "column:note": "<img src=x onerror=alert(1)>",
            "label": "yes",
        }
        for color, text in legends.items():
            page.get_by_label("Color by").select_option(color)
            page.wait_for_selector(f"#map-legend >> text={text}")
            no_serious_findings(page)
        assert fits(page)


def test_the_legend_is_sorted_searched_and_isolates_by_keys(browser, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(26), np.arange(26) + 4)
    X = rng.normal(size=(26, 5))[y] + 0.3 * rng.normal(size=(len(y), 5))
    names = np.array([f"class {i:02} {'of a long name ' * 6}"[:95] for i in range(26)])
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, names[y]).save(tmp_path / "m")
    with served(tmp_path / "m") as base, opened(browser, base, 400, "dark") as page:
        shown(page, base)
        entries = page.locator("#map-legend button.entry")
        assert entries.count() == 26 and "class 25" in entries.first.inner_text()
        page.get_by_label("Order of the legend").select_option("name")
        assert "class 00" in entries.first.inner_text()
        page.get_by_label("Search the legend").fill("class 1")
        assert entries.count() == 10
        entries.first.focus()
        page.keyboard.press("Enter")
        until(page, "map.faint && map.faint.filter((one) => !one).length === 14")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")  # a second class is added
        until(page, "map.faint.filter((one) => !one).length === 29")
        assert page.url.count("only=") == 2
        dragged(page, ALL, shift=True)
        assert "29 rows" in summed(page)  # faint points are not chosen
        page.get_by_role("button", name="Show all").click()
        page.wait_for_selector(f"#map-selection >> text={len(y)} rows")
        looks = page.evaluate(
            "Array.from({length: 26}, (_, i) => JSON.stringify(look(i, map.colors.hues)))"
        )
        assert len(set(looks)) == 26  # each by its hue and shape
        no_serious_findings(page)
        assert fits(page)


def test_keys_do_what_the_pointer_does(browser, table):
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        page.locator("#map").focus()
        for key, zoom in (("+", 1.5), ("+", 2.25), ("-", 1.5), ("0", 1)):
            page.keyboard.press(key)
            assert page.evaluate("map.view.zoom") == pytest.approx(zoom)
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#map-tip >> text=/: /")  # with values of the row
        until(page, "document.getElementById('map-said').textContent.includes('row ')")
        page.keyboard.press("Enter")
        page.wait_for_selector("#map-selection >> text=20 rows")
        page.keyboard.press("Escape")
        page.wait_for_selector("#map-selection", state="hidden")
        for moves in ("Shift+ArrowLeft", "Shift+ArrowUp"), ("Shift+ArrowRight",), ("ArrowDown",):
            for key in moves:
                for _ in range(12):
                    page.keyboard.press(key)
            page.keyboard.press("Space")
        assert "Corner 3" in page.locator("#map-said").inner_text()
        page.keyboard.press("Enter")
        page.wait_for_selector("#map-selection >> text=/^\\d+ rows?/")
        assert page.evaluate("map.lasso.length") == 3
        page.keyboard.press("+")
        for _ in range(60):  # at the edge the map moves
            page.keyboard.press("Shift+ArrowRight")
        assert page.evaluate("map.view.x") == pytest.approx(page.evaluate("map.view.box[1]"))


def test_wheel_and_drag_zoom_and_move_about_the_pointer(browser, table):
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        box = page.locator("#map").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 200)
        before = page.evaluate("map.view.toData(300, 200)")
        page.mouse.wheel(0, -400)
        until(page, "map.view.zoom > 2")
        pixel = page.evaluate("1 / map.view.scale")
        assert page.evaluate("map.view.toData(300, 200)") == pytest.approx(before, abs=2 * pixel)
        dragged(page, [(0.3, 0.3), (0.35, 0.3)])
        until(page, "location.search.includes('view=')")
        page.get_by_role("button", name="Whole map").click()
        assert page.evaluate("map.view.zoom") == 1 and "view" not in page.url
        page.mouse.wheel(0, 400)  # the whole map is in sight: the page scrolls
        until(page, "scrollY > 0 || document.body.scrollHeight <= innerHeight")


def test_a_finger_scrolls_the_page_until_the_map_is_enlarged(browser, table):
    touch = "getComputedStyle(document.getElementById('map')).touchAction"
    with served(table) as base, opened(browser, base, 400) as page:
        shown(page, base)
        assert page.evaluate(touch) == "pan-y"
        page.get_by_role("button", name="Zoom in").click()
        until(page, f"{touch} === 'none'")
        page.get_by_role("button", name="Whole map").click()
        until(page, f"{touch} === 'pan-y'")
        page.get_by_role("button", name="Lasso").click()
        assert page.evaluate(touch) == "none"
        page.evaluate(
            """() => {
              const canvas = document.getElementById("map");
              const box = canvas.getBoundingClientRect();
              const send = (type, id, x, y) => canvas.dispatchEvent(new PointerEvent(type, {
                pointerId: id, pointerType: "touch", button: 0, buttons: 1, bubbles: true,
                clientX: box.left + x, clientY: box.top + y}));
              canvas.setPointerCapture = () => {};
              send("pointerdown", 1, 100, 100);
              send("pointerdown", 2, 150, 100);
              send("pointermove", 2, 250, 100);
              send("pointerup", 2, 250, 100);
              send("pointerup", 1, 100, 100);
            }"""
        )
        assert page.evaluate("map.view.zoom") == pytest.approx(3)  # 150 pixels for 50
        assert page.evaluate("map.lasso.length") == 0
    with served(table) as base:
        page = browser.new_page(has_touch=True)
        shown(page, base)
        box = page.locator("#map").bounding_box()
        x, y = page.evaluate("map.view.toScreen(map.points.x[0], map.points.y[0])")
        page.touchscreen.tap(box["x"] + x, box["y"] + y)
        page.wait_for_selector("#map-tip >> text=/: /")  # it stays
        page.close()


def test_colors_follow_the_theme(browser, table):
    corner = (
        "Array.from(document.getElementById('map').getContext('2d').getImageData(1, 1, 1, 1).data)"
    )
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        until(page, f"{corner}[0] === 255")
        page.emulate_media(color_scheme="dark")
        until(page, f"{corner}[0] === 20")


def test_the_question_and_its_neighbors_are_marked(browser, table):
    with served(table) as base, opened(browser, base) as page:
        page.goto(f"{base}/page/ask?row=3")
        page.wait_for_selector("#answer .neighbors")
        page.get_by_role("link", name="Show it on the map").click()
        page.wait_for_selector("text=The cross is the row that was asked about")
        assert page.evaluate("map.nearPoints.length") == 8
        near = page.evaluate("map.nearPoints.map((i) => map.points.id[i])")
        assert sorted(near) == sorted(page.evaluate("map.query.neighbors")) and 3 not in near


def test_a_layout_under_way_shows_its_progress_and_can_be_cancelled(browser, table):
    with served(table) as base, opened(browser, base) as page:
        shown(page, base)
        page.route("**/map?method=tsne*", lambda route: None)  # it does not come
        page.route("**/page/map/progress", lambda route: route.fulfill(body='{"progress": 0.4}'))
        page.get_by_label("t-SNE").check()
        page.wait_for_selector("text=40 % done")
        assert page.locator("#map-frame.stale #map-progress").is_visible()
        no_serious_findings(page)
        page.get_by_role("button", name="Cancel").click()
        page.wait_for_selector("#map-busy", state="hidden")
        assert page.get_by_label("PCA").is_checked()
        assert page.locator("#map-frame.stale").count() == 0
        page.get_by_label("t-SNE").check()
        page.wait_for_selector("text=40 % done")
        page.get_by_label("PCA").check()  # another choice ends it too
        page.wait_for_selector(READY)
        assert not page.locator("#map-busy").is_visible()


def test_a_memory_that_changes_is_laid_out_anew_for_another_coloring(browser, table, tmp_path):
    folder = shutil.copytree(table, tmp_path / "copy.model")
    with served(folder) as base, opened(browser, base) as page:
        shown(page, base)
        with LiveModel(folder) as other:
            other.remove([5])
        page.request.post(f"{base}/rows", data={"rows": [dict.fromkeys(
            ["age", "income", "town", "note"])], "labels": ["yes"]})  # fmt: skip
        page.get_by_label("Color by").select_option("change")
        page.wait_for_selector("#map-legend >> text=came with the fit: 159")
        page.wait_for_selector("text=160 rows, version 2")


@pytest.mark.parametrize("kind", ["equal rows", "one number", "targets"])
def test_memories_without_spread_are_drawn(browser, tmp_path, kind):
    y = np.arange(60) % 2
    X = np.ones((60, 3)) if kind == "equal rows" else np.arange(60.0)[:, None]
    make = AttnKNNRegressor if kind == "targets" else AttnKNNClassifier
    model = make(preset="instant", estimator=None, random_state=0)
    model.fit(X, y * 1.0 if kind == "targets" else y).save(tmp_path / "m")
    with served(tmp_path / "m") as base, opened(browser, base) as page:
        shown(page, base)
        dragged(page, ALL, shift=True)
        assert "60 rows" in summed(page)
        page.get_by_label("Color by").select_option("error" if kind == "targets" else "confidence")
        until(page, "map.color !== 'label' && map.shown.color === map.color")
        assert page.evaluate("map.tints.color.every((one) => one > 0)")


def test_a_memory_in_a_store_says_that_it_has_no_map(browser, table, tmp_path):
    pytest.importorskip("lance")
    from nearwise.estimators import move_memory

    move_memory(AttnKNNClassifier.load(table), tmp_path / "moved.model")
    with served(tmp_path / "moved.model") as base, opened(browser, base) as page:
        page.expected.append("422")
        page.goto(f"{base}/page/map")
        page.wait_for_selector("#problem >> text=/store/")
        assert "There is no layout yet" in page.locator("#map-about").inner_text()
        assert not page.locator("#map-busy").is_visible()


def test_images_have_a_picture_in_the_tip_and_in_the_list(browser, tmp_path):
    attn_knn(**BRIEF).fit(*patches()).save(tmp_path / "images.model")
    with served(tmp_path / "images.model") as base, opened(browser, base) as page:
        shown(page, base)
        page.locator("#map").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#map-tip img")
        page.keyboard.press("Enter")
        summed(page)
        page.get_by_role("button", name="List rows").click()
        page.wait_for_selector("#map-rows img")
        assert page.locator("#map-rows img").count() == 20
        no_serious_findings(page)


def test_a_hundred_thousand_points_are_drawn(browser, table):
    n = 100_000
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, n)).round(3).tolist()
    found = {"id": list(range(n)), "label": [i % 3 for i in range(n)], "classes": ["a", "b", "c"]}
    found |= {
        "x": x,
        "y": y,
        "explained_variance": [0.5, 0.2],
        "memory_version": 0,
        "n_remembered": 2 * n,
    }
    with served(table) as base, opened(browser, base) as page:
        page.route("**/map?*", lambda route: route.fulfill(body=json.dumps(found)))
        shown(page, base)
        page.wait_for_selector("text=100,000 rows of 200,000, drawn at random")
        marked = page.evaluate(
            """() => {
              map.draw();
              const c = document.getElementById("map");
              const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
              return d.filter((value, i) => i % 4 === 0 && value < 200).length;
            }"""
        )
        assert marked > 20_000
        # The nearest point by the grid is the nearest of all.
        for at in [*rng.normal(size=(5, 2)).tolist(), [40.0, -30.0]]:
            found_id = page.evaluate(
                "([x, y]) => map.points.id[map.points.nearest(x, y, Infinity, () => true)]", at
            )
            gaps = (np.array(x) - at[0]) ** 2 + (np.array(y) - at[1]) ** 2
            assert gaps[found_id] == pytest.approx(gaps.min())
