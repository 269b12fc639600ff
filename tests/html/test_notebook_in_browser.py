"""What notebooks show can be read under whatever theme, and whatever the system's is."""

import numpy as np
import pytest

from tests.browser import no_serious_findings
from tests.estimators.cases import CHEAP, attn_knn
from tests.html.test_rendering import shown_in_notebooks
from tests.store.folders import small_table

pytestmark = pytest.mark.slow
THEMES = {  # of the notebook: ground, color of its text
    "light": ("#ffffff", "#000000"),
    "dark": ("#111111", "#e0e0e0"),
    "variables": ("#1e1e1e", "#000000"),  # those of VS Code tell the color
}
_CONTRASTS = """
() => {
  const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colors) => {
    pen.clearRect(0, 0, 1, 1);
    for (const one of colors) { pen.fillStyle = one; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (parts) => {
    const [r, g, b] = parts.map((p) => p / 255).map(
      (p) => p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const one of document.querySelectorAll('.nearwise, .nearwise *')) {
    const has = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!has || one.closest('style, svg title, .hidden')) continue;
    const grounds = [];
    for (let at = one; at; at = at.parentElement) {
      grounds.unshift(getComputedStyle(at).backgroundColor);
    }
    const style = getComputedStyle(one);
    const ground = rgb(grounds);
    const ink = rgb([...grounds, one.closest('svg') ? style.fill : style.color]);
    const [low, high] = [light(ground), light(ink)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), one.tagName, one.textContent.trim().slice(0, 40)]);
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def shown():
    frame, y = small_table(90)
    return shown_in_notebooks(attn_knn(**CHEAP).fit(frame, y), frame)


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("what", ["explanation", "sets", "trust", "model"])
def test_every_word_stands_out_from_its_ground(browser, shown, what, theme, system):
    ground, ink = THEMES[theme]
    variables = "--vscode-editor-foreground: #d4d4d4;" if theme == "variables" else ""
    style = f"background: {ground}; color: {ink}; {variables}"
    page = browser.new_page(viewport={"width": 900, "height": 900}, color_scheme=system)
    try:
        page.set_content(
            f'<!doctype html><html lang="en"><title>x</title><body style="{style}"><main>'
            f"<h1>x</h1>{shown[what]}</main></body></html>"
        )
        found = page.evaluate(_CONTRASTS)
        assert len(found) > 5
        assert [one for one in found if not one[0] >= 4.5] == []
        no_serious_findings(page)
    finally:
        page.close()
    assert np.isfinite([one[0] for one in found]).all()
