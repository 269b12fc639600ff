"""The service gives what is shown with a row, and thumbnails of pictures, but no other file."""

import html
import io
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image, PngImagePlugin

from nearwise import AttnKNNClassifier, AttnKNNRegressor, LiveModel
from nearwise.serve.keys import make_key, read_keys
from tests.estimators.cases import attn_knn, blobs
from tests.estimators.image_cases import BRIEF, patches
from tests.serve.conftest import problem
from tests.serve.test_description import holds

NONE = "The row has no picture, or its file is not readable."


def saved(folder, show, kind=AttnKNNClassifier):
    X, y = blobs(30, 2)
    model = kind(preset="instant", estimator=None, random_state=0)
    model.fit(X, y, show=[*show, *[None] * (30 - len(show))]).save(folder)
    return folder


def photo(path, size=(600, 300), **options):
    Image.new("RGB", size, (200, 30, 30)).save(path, **options)
    return str(path)


def thumbnail(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-content-type-options"] == "nosniff"
    return Image.open(io.BytesIO(response.content))


@pytest.mark.parametrize("kind", [AttnKNNClassifier, AttnKNNRegressor])
def test_it_comes_with_rows_and_neighbors_and_is_added(kind, asked, tmp_path):
    with asked(saved(tmp_path / "m", ["a text"], kind)) as client:
        described = client.get("/openapi.json").json()
        assert client.get("/rows/0").json()["show"] == "a text"
        assert "show" not in client.get("/rows/1").json()
        X, _ = blobs(30, 2)
        labels = "labels" if kind is AttnKNNClassifier else "targets"
        new = {"features": [*X[:2].tolist()], labels: [0, 1], "show": ["new", None]}
        for path in ("/rows", "/feedback"):
            added = client.post(path, json=new)
            holds(described, "post", path, added)
            found = client.get(f"/rows/{added.json()['ids'][0]}")
            holds(described, "get", "/rows/{id}", found)
            assert found.json()["show"] == "new"
        why = client.post("/explain", json={"features": [X[0].tolist()], "n_neighbors": 4})
        holds(described, "post", "/explain", why)
        shown = {one["id"]: one.get("show") for one in why.json()["predictions"][0]["neighbors"]}
        assert shown[0] == "a text" and shown[30] == "new" and shown[32] == "new"
        found = client.get("/review")
        holds(described, "get", "/review", found)
        shows = {one["id"]: one.get("show") for one in found.json()["findings"]}
        assert {shows.get(row) for row in (0, 30)} == {"a text", "new"}  # copies
        said = problem(client.post("/rows", json=new | {"show": ["one"]}), 422)
        assert "2 rows have 1 in show; give one each" in said
        assert problem(client.post("/rows", json=new | {"show": [1, None]}), 422)
        assert client.get("/changes").json()["memory_version"] == 2


def test_a_column_that_is_shown_is_a_member_of_rows(asked, tmp_path):
    X, y = blobs(30, 2)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(link="https://example.org/")
    model = AttnKNNClassifier(preset="instant", estimator=None, random_state=0)
    model.fit(frame, y, show="link").save(tmp_path / "m")
    row = dict(zip("abcd", X[0].tolist(), strict=True))
    with asked(tmp_path / "m") as client:
        rows = [row | {"link": "https://example.org/2"}, row]
        added = client.post("/rows", json={"rows": rows, "labels": [0, 0]}).json()["ids"]
        shows = [client.get(f"/rows/{id}").json().get("show") for id in added]
        assert shows == ["https://example.org/2", None]
        assert client.post("/predict", json={"rows": [row]}).status_code == 200


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp"])
def test_a_picture_is_a_small_png_of_its_pixels_alone(suffix, asked, tmp_path):
    secret = PngImagePlugin.PngInfo()
    secret.add_text("place", "home")
    noted = {"pnginfo": secret} if suffix == "png" else {}
    show = [photo(tmp_path / f"a.{suffix}", **noted), photo(tmp_path / f"b.{suffix}", (9, 1))]
    with asked(saved(tmp_path / "m", show)) as client:
        answer = client.get("/rows/0/picture")
        found = thumbnail(answer)
        assert (found.format, found.size, found.info) == ("PNG", (256, 128), {})
        assert np.abs(np.asarray(found.convert("RGB")) - [200, 30, 30.0]).max() < 12
        assert thumbnail(client.get("/rows/1/picture")).size == (9, 1)  # never enlarged


def test_a_relative_path_starts_in_the_working_directory(asked, tmp_path, monkeypatch):
    folder = saved(tmp_path / "m", ["a.png"])
    (tmp_path / "here").mkdir()
    photo(tmp_path / "here" / "a.png")
    with asked(folder) as client:
        problem(client.get("/rows/0/picture"), 404)
        monkeypatch.chdir(tmp_path / "here")
        thumbnail(client.get("/rows/0/picture"))


def test_no_other_file_and_no_url_is_ever_read(asked, tmp_path, monkeypatch):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret words")
    shutil.copy(secret, tmp_path / "text.png")
    (tmp_path / "link.png").symlink_to(secret)
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    photo(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:90])
    photo(tmp_path / "hidden.txt", format="PNG")
    named = ["text.png", "link.png", "folder.png", "pipe.png", "device.png", "cut.png", "gone.png"]
    show = [str(tmp_path / name) for name in [*named, "hidden.txt", "secret.txt"]]
    show += ["/etc/passwd", f"file://{tmp_path}/a.png", "http://127.0.0.1:9/a.png", "a" * 9999]
    show += ["a\x00.png", "javascript:1.png", "//server/share/a.png", "a" * 9999 + ".png"]
    monkeypatch.setattr("socket.create_connection", None)  # a call would raise TypeError
    with asked(saved(tmp_path / "m", show)) as client:
        said = {problem(client.get(f"/rows/{i}/picture"), 404) for i in range(len(show) + 1)}
        assert said == {NONE}  # which tells nothing of what is there
        assert "remembered" in problem(client.get("/rows/99/picture"), 404)


def test_a_picture_beyond_the_limit_of_memory_is_not_decoded(asked, tmp_path, monkeypatch):
    show = [photo(tmp_path / "huge.png", (2000, 2000)), photo(tmp_path / "small.png")]
    monkeypatch.setenv("NEARWISE_IMAGE_MEMORY", "3")
    with asked(saved(tmp_path / "m", show)) as client:
        assert problem(client.get("/rows/0/picture"), 404) == NONE
        thumbnail(client.get("/rows/1/picture"))


def test_images_give_the_pixels_that_are_remembered(asked, tmp_path):
    images, y = patches(100)
    folder = tmp_path / "m"
    attn_knn(**BRIEF).fit(images, y, show=["/etc/passwd"] * 100).save(folder)
    with asked(folder) as client:
        found = thumbnail(client.get("/rows/7/picture"))
        assert np.array_equal(np.asarray(found), images[7, ..., 0])


def test_pictures_need_a_key_that_may_read(asked, tmp_path):
    folder = saved(tmp_path / "m", [photo(tmp_path / "a.png")])
    key = make_key(tmp_path / "keys", "reader", "read")
    with asked(folder, keys=read_keys(tmp_path / "keys")) as client:
        problem(client.get("/rows/0/picture"), 401)
        thumbnail(client.get("/rows/0/picture", headers={"X-API-Key": key}))


def test_the_journal_keeps_what_the_service_was_given(asked, tmp_path):
    folder = saved(tmp_path / "m", ["a"])
    with asked(folder) as client:
        row = {"features": [[0.0, 0.0, 0.0, 0.0]], "labels": [0], "show": ["later"]}
        (id,) = client.post("/rows", json=row).json()["ids"]
    assert LiveModel(folder).model.fitted_.look_up([id])[0].show == "later"


HOSTILE = ("javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "<img src=x>")


def test_the_page_and_notebooks_draw_pictures_link_addresses_and_escape_texts(asked, tmp_path):
    cat = photo(tmp_path / "cat.png")
    gone, address = str(tmp_path / "gone.png"), "https://example.org/a?b=1&c=2"
    shown = [cat, address, *HOSTILE, gone]
    X, _ = blobs(30, 2)
    with asked(saved(tmp_path / "m", shown * 5)) as client:
        parts = [
            client.post("/page/map/rows", json={"ids": ",".join(map(str, range(30)))}).text,
            *(
                client.post("/page/ask/answer", json=row_form(X[at], at)).text
                for at in range(len(shown))
            ),
            *(
                queue(client, {"kind": kind, "view": view})
                for kind in ("all", "label", "outlier", "copy")
                for view in ("one", "list")
            ),
        ]
        tips = [client.get(f"/page/map/tip/{at}").json() for at in range(len(shown))]
    assert tips[0]["picture"].startswith("data:image/png;base64,")
    assert [tip["columns"][0] for tip in tips[1:]] == [["shown", text] for text in shown[1:]]
    model = AttnKNNClassifier.load(tmp_path / "m")
    parts.append(model.explain(X[:6], 8)._repr_html_())
    for part in (*parts[:2], parts[-1]):
        assert "data:image/png;base64," in part
    for part in parts:
        assert "<script>" not in part and "<img src=x>" not in part
        for link in re.findall(r'<a class="shown" href="([^"]*)"([^>]*)>', part):
            assert html.unescape(link[0]) == address and "noreferrer" in link[1]
        for source in re.findall(r'<img [^>]*src="([^"]*)"', part):
            assert source.startswith("data:image/png;base64,")  # nothing is fetched
    assert f'href="{html.escape(address)}"' in parts[0]
    assert html.escape(HOSTILE[0]) in parts[0] and "gone.png" in parts[0]


def queue(client, place):
    """The queue once it is ranked."""
    found = client.post("/page/review/queue", json=place)
    assert found.status_code == 200 and 'id="case"' in found.text, found.text
    return found.text


def row_form(values, row):
    return {f"c{at}": str(value) for at, value in enumerate(values)} | {"remembered": str(row)}
