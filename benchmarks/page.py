"""The page in Chromium: views of several models, times, and a person who works with the keyboard.

python benchmarks/page.py --data-root ../shared/data      # needs a chromium; ten minutes

Looks at the five views of three models at 400 and 1,400 pixels, light and dark, and counts what
overflows, violations that axe finds, console errors and requests to other hosts. Then measures the
first answer after a start and the map of 100,000 points, and lets a scripted person ask, switch a
neighbor off, relabel 20 rows, undo, zoom, draw a lasso, and open a copied link.
"""

import io
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sklearn.datasets import load_digits

from nearwise import AttnKNNClassifier, LiveModel
from nearwise.serve import Limits, Service, create_app

READY = {  # what shows that a view is complete
    "start": ".thing, #main h2:last-of-type",
    "ask?row=3": "#answer .near",
    "map": "#map-legend li",
    "review": "#case",
    "trust": ".classes",
}
N_RELABELED = 20
N_POINTS = 100_000


def wide(folder: Path, n_rows: int = 10_000) -> Path:
    """Model of a table of 60 columns and 26 classes with long names, a tenth of them wrong."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 26, n_rows)
    centers = rng.normal(size=(26, 59)) * 0.35
    frame = pd.DataFrame(rng.normal(size=(n_rows, 59)) + centers[codes])
    frame.columns = [f"measure {at:02d} of the instrument" for at in range(59)]
    frame["note"] = np.where(codes % 2, "<b>bold & more</b>", "x" * 60)
    labels = np.where(rng.random(n_rows) < 0.1, rng.integers(0, 26, n_rows), codes)
    names = [
        f"class {chr(65 + at)} with a name that goes on and on and on " * 2 for at in range(26)
    ]
    y = pd.Series(np.array(names)[labels], name="kind")
    AttnKNNClassifier(preset="instant", random_state=0).fit(frame, y).save(folder / "wide")
    return folder / "wide"


def images(folder: Path) -> Path:
    """Model of 600 images of digits."""
    X, y = load_digits(return_X_y=True)
    pixels = (X.reshape(-1, 8, 8) * 15.9).astype(np.uint8)[:600]
    AttnKNNClassifier(random_state=0).fit(pixels, y[:600]).save(folder / "images")
    return folder / "images"


def embeddings(folder: Path, data: Path, n_rows: int = 2_000) -> Path:
    """Model of pretrained features of CIFAR-10, each shown by its picture."""
    shard = min((data / "cifar10").rglob("*train*.parquet"))
    table = pq.read_table(shard).slice(0, n_rows).to_pydict()
    files = []
    for at, image in enumerate(table["img"]):
        files.append(folder / f"{at}.png")
        Image.open(io.BytesIO(image["bytes"])).save(files[-1])
    features = np.load(next((data / "cifar10-features").glob("*.npz")))
    X = features["train"][:n_rows].astype(np.float32)
    model = AttnKNNClassifier(preset="instant", random_state=0)
    model.fit(X, features["train_label"][:n_rows], show=files).save(folder / "embeddings")
    return folder / "embeddings"


def many(folder: Path) -> Path:
    """Model of 100,000 points."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, N_POINTS)
    X = rng.normal(size=(N_POINTS, 6)) + np.eye(8, 6)[y] * 3
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(X, y).save(folder / "many")
    return folder / "many"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a model, and give its address."""
    service = Service(LiveModel(folder), Limits(deadline=60))
    config = uvicorn.Config(create_app(service, name=folder.name), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def opened(browser: Browser, base: str, wrong: list[str], **options: Any) -> Iterator[Page]:
    """Open a page that notes console errors and requests to other hosts."""
    page = browser.new_page(**options)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda one: None if one.url.startswith((base, "data:")) else wrong.append(one.url),
    )
    try:
        yield page
    finally:
        page.close()


def looks(browser: Browser, folder: Path) -> list[dict[str, Any]]:
    """Look at each view of a model at two widths, light and dark."""
    found = []
    with served(folder) as base:
        for view, ready in READY.items():
            for width in (400, 1400):
                for scheme in ("light", "dark"):
                    wrong: list[str] = []
                    size = {"width": width, "height": 900}
                    with opened(browser, base, wrong, viewport=size, color_scheme=scheme) as page:
                        page.goto(f"{base}/page/{view}")
                        page.wait_for_selector(ready, timeout=120_000)
                        page.wait_for_timeout(500)
                        overflows = page.evaluate(
                            "document.documentElement.scrollWidth > window.innerWidth"
                        )
                        violations = [one["id"] for one in Axe().run(page).response["violations"]]
                    found.append(
                        {
                            "model": folder.name,
                            "view": view.partition("?")[0],
                            "width": width,
                            "scheme": scheme,
                            "overflows": overflows,
                            "axe": violations,
                            "errors": wrong,
                        }
                    )
                    print(*found[-1].values(), flush=True)
    return found


def first_answer(browser: Browser, folder: Path) -> dict[str, float]:
    """Seconds from the start of the service, and from the question, to the first answer."""
    begin = time.perf_counter()
    with served(folder) as base, opened(browser, base, []) as page:
        started = time.perf_counter()
        page.goto(f"{base}/page/ask?row=3")
        page.wait_for_selector("#answer .near", timeout=120_000)
        end = time.perf_counter()
    return {"start": started - begin, "first_answer": end - started}


_DRAG = """
async ({x, y}) => {
  const canvas = document.getElementById('map');
  const at = (type, dx, buttons) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, pointerType: 'mouse', isPrimary: true, button: 0, buttons, bubbles: true,
    clientX: x + dx, clientY: y}));
  canvas.setPointerCapture = () => {};
  let frames = 0, on = true;
  const tick = () => { frames += 1; if (on) requestAnimationFrame(tick); };
  at('pointerdown', 0, 1);
  requestAnimationFrame(tick);
  const begin = performance.now();
  for (let i = 0; performance.now() - begin < 3000; i += 1) {
    at('pointermove', 200 * Math.sin(i / 20), 1);
    await new Promise((done) => setTimeout(done, 16));
  }
  on = false;
  at('pointerup', 0, 0);
  return frames / ((performance.now() - begin) / 1000);
}
"""


def large_map(browser: Browser, folder: Path) -> dict[str, float]:
    """Seconds until a map of 100,000 points is drawn, and frames per second while it is dragged."""
    size = {"width": 1400, "height": 900}
    with served(folder) as base, opened(browser, base, [], viewport=size) as page:
        page.goto(f"{base}/page/start")
        page.wait_for_selector(".tile", timeout=120_000)
        page.wait_for_function(
            "fetch('/v2/health/ready').then(r => r.json()).then(r => r.getting_ready === null)",
            timeout=300_000,
        )
        times = []
        for _ in range(2):  # the first one lays the memory out
            begin = time.perf_counter()
            page.goto(f"{base}/page/map")
            page.wait_for_selector("#map-legend li", timeout=300_000)
            times.append(time.perf_counter() - begin)
        box = page.locator("#map").bounding_box()
        assert box is not None
        middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        return {"first": times[0], "again": times[1], "fps": page.evaluate(_DRAG, middle)}


def work(browser: Browser, folder: Path) -> dict[str, Any]:
    """Ask, switch, relabel by keys, undo, zoom, draw a lasso, and open copied links."""
    wrong: list[str] = []
    done: dict[str, Any] = {}
    size = {"width": 1400, "height": 900}
    with served(folder) as base, opened(browser, base, wrong, viewport=size) as page:
        page.goto(f"{base}/page/ask?row=3")
        page.wait_for_selector("#answer .near")
        page.locator("input[name=off]").first.check()
        page.wait_for_selector("text=with these changes")
        page.get_by_text("Ask this elsewhere").click()
        page.get_by_role("button", name="Copy a link").click()
        page.wait_for_selector("text=Copied")
        link = page.evaluate("navigator.clipboard.readText()")
        page.goto(f"{base}/page/review?kind=label")
        page.wait_for_selector("#case", timeout=120_000)
        begin = time.perf_counter()
        for at in range(1, N_RELABELED + 1):
            page.keyboard.press("a")
            page.wait_for_selector(f"text=/^{at} of .* decided/")
        done["seconds_per_decision"] = (time.perf_counter() - begin) / N_RELABELED
        done["relabeled"] = len(LiveModel(folder).history())
        page.keyboard.press("u")
        page.wait_for_selector(f"text=/^{N_RELABELED - 1} of .* decided/")
        done["undone"] = len(LiveModel(folder).history()) - done["relabeled"]
        page.goto(f"{base}/page/map")
        page.wait_for_selector("#map-legend li")
        page.get_by_role("button", name="Zoom in").click()
        page.get_by_role("button", name="Lasso", exact=True).click()
        box = page.locator("#map").bounding_box()
        assert box is not None
        for step, (x, y) in enumerate([(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.1, 0.9)]):
            page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y, steps=4)
            if not step:
                page.mouse.down()
        page.mouse.up()
        page.wait_for_url("**lasso=**")
        shown = page.url
        with opened(browser, base, wrong) as other:
            other.goto(link)
            other.wait_for_selector("text=with these changes")
            other.goto(shown)
            other.wait_for_selector("#map-legend li")
            done["links_opened"] = 2
    return done | {"errors": wrong}


def main() -> None:
    """Make the models, look at all, and keep the record."""
    parser = keeping.options_of(__doc__, data_root="data", out=keeping.RESULTS / "page.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, sync_playwright() as started:
        folder = Path(made)
        models = [wide(folder), images(folder), embeddings(folder, Path(options.data_root))]
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        found = {
            "first_answer": [first_answer(browser, models[0]) for _ in range(3)],
            "large_map": large_map(browser, many(folder)),
            "person": work(browser, models[0]),
            "looks": [one for model in models for one in looks(browser, model)],
        }
        browser.close()
    keeping.keep(keeping.conditions() | found, Path(options.out))


if __name__ == "__main__":
    main()
