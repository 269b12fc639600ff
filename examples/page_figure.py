"""Take the pictures of docs/how-to/page.md and README.md: the page in Chromium.

pip install '.[serve,browser,vision]'
python examples/page_figure.py            # needs a chromium on the path
"""

import io
import shutil
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_wine

from nearwise import AttnKNNClassifier, LiveModel
from nearwise.serve import Service, create_app

OUT = Path(__file__).parents[1] / "docs" / "images"


def film(page: Page, path: Path) -> None:
    """Record how an answer changes while its neighbors are switched off, as a GIF."""
    frames: list[Image.Image] = []

    def keep(seconds: float) -> None:
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(shot.resize((800, 800 * shot.height // shot.width)))
        frames[-1].info["seconds"] = seconds

    keep(3)
    switches = page.locator("#answer .switch input")
    switches.first.scroll_into_view_if_needed()
    keep(3)
    for at in range(3):
        page.locator("#answer .switch").nth(at).click()
        page.wait_for_timeout(1_000)
        keep(3)
    durations = [1_000 * frame.info["seconds"] for frame in frames]
    shown = [frame.quantize(64) for frame in frames]
    shown[0].save(path, save_all=True, append_images=shown[1:], duration=durations, loop=0)


def main() -> None:
    """Fit, serve, take pictures."""
    X, y = load_wine(return_X_y=True, as_frame=True)
    y = y.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
    y[[4, 150]] = "Grignolino", "Barolo"  # wrong labels, to be found
    folder = tempfile.mkdtemp()
    AttnKNNClassifier(preset="instant", random_state=0).fit(X, y).save(folder)
    server = uvicorn.Server(
        uvicorn.Config(create_app(Service(LiveModel(folder))), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(f"{base}/page/ask?row=66")
        page.wait_for_selector("#answer .near")
        page.screenshot(path=OUT / "page-ask.png", full_page=True)
        page.set_viewport_size({"width": 1000, "height": 900})
        page.goto(f"{base}/page/ask?row=96")
        page.wait_for_selector("#answer .near")
        film(page, OUT / "page-ask.gif")
        page.set_viewport_size({"width": 1200, "height": 800})
        page.goto(f"{base}/page/review")
        page.wait_for_selector("#case")
        page.screenshot(path=OUT / "page-review.png")
        page.goto(f"{base}/page/map")
        page.wait_for_selector("#map-legend li")
        page.screenshot(path=OUT / "page-map.png")
        page.goto(f"{base}/page/trust")
        page.wait_for_selector(".confusion")
        page.screenshot(path=OUT / "page-trust.png")
        page.goto(base)
        page.wait_for_selector(".thing")
        page.screenshot(path=OUT / "page-start.png")
        browser.close()
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
