"""Take the pictures of docs/how-to/explain.md: the page in Chromium, on a table of scikit-learn.

pip install '.[serve,browser]'
python examples/page_figure.py            # needs a chromium on the path
"""

import shutil
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_wine

from nearwise import AttnKNNClassifier, LiveModel
from nearwise.serve import Service, create_app

OUT = Path(__file__).parents[1] / "docs" / "images"


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
        page.wait_for_selector("#answer .neighbors")
        page.screenshot(path=OUT / "page-ask.png", full_page=True)
        page.goto(f"{base}/page/review")
        page.wait_for_selector(".review")
        page.screenshot(path=OUT / "page-review.png")
        browser.close()
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
