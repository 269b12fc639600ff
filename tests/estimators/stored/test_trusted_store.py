"""Where a model's memory is opened is the user's word, never the folder's."""

import shutil

import numpy as np
import pytest

from nearwise.estimators import AttnKNNClassifier, LiveModel, move_memory
from nearwise.estimators.stored.folder import history_of
from nearwise.memory import StoreError
from nearwise.memory.stores import engine_of
from tests.estimators.cases import attn_knn, blobs
from tests.estimators.stored.folders import placed
from tests.memory.stores.listeners import listener
from tests.memory.stores.servers import require

OPENERS = {"load": AttnKNNClassifier.load, "live": LiveModel, "history": history_of}
X, Y = blobs(150)


@pytest.fixture(scope="module")
def model():
    return attn_knn(estimator=None, preset="instant", random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def own(model, tmp_path_factory):
    """A model with its memory in its own folder."""
    require("lance", "faiss")
    folder = tmp_path_factory.mktemp("trusted") / "m"
    move_memory(model, folder)
    return folder


@pytest.fixture(autouse=True)
def _secrets(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "hunter2")


def refused(opened, folder, **named):
    with pytest.raises(StoreError) as found:
        opened(folder, **named)
    assert found.value.reason == "untrusted"
    return str(found.value)


@pytest.mark.parametrize("opened", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u@127.0.0.1:PORT/x",
        "postgresql://u@localhost/x?hostaddr=127.0.0.1&port=PORT&passfile=/etc/hosts",
        "postgresql:///x?host=127.0.0.1&port=PORT&sslmode=disable&sslkey=/etc/hosts",
    ],
)
def test_no_server_is_reached_that_only_the_folder_names(own, tmp_path, opened, uri):
    require("psycopg")
    with listener("clear") as heard:
        folder = placed(own, tmp_path / "m", uri.replace("PORT", str(heard.port)))
        said = refused(opened, folder)
        assert heard.is_untouched
        for named in ("postgresql://u@127.0.0.1:1/x", tmp_path / "s"):
            assert "that you named is another" in refused(opened, folder, trusted_store=named)
        assert heard.is_untouched
    assert f"{heard.port}/x" in said and "--store" in said and "trusted_store=" in said
    assert "passfile" not in said and "ssl" not in said


@pytest.mark.parametrize("opened", OPENERS.values(), ids=OPENERS)
def test_no_folder_is_opened_that_only_the_folder_names(own, model, tmp_path, opened):
    move_memory(model, tmp_path / "m", str(tmp_path / "elsewhere"))
    shutil.move(tmp_path / "elsewhere", tmp_path / "hidden")
    said = refused(opened, tmp_path / "m")  # and not "missing", as nobody looked
    assert f"--store {tmp_path / 'elsewhere'}" in said
    shutil.move(tmp_path / "hidden", tmp_path / "elsewhere")
    opened(tmp_path / "m", trusted_store=tmp_path / "x" / ".." / "elsewhere")


@pytest.mark.parametrize(
    "uri", ["rows/../../x", "../x", "x", "", "rows/", "redis://h/x", "/\x1b[2J", "milvus+ftp://h/x"]
)
def test_a_place_that_no_move_writes_is_invalid_whatever_the_user_says(own, tmp_path, uri):
    folder = placed(own, tmp_path / "m", uri)
    for named in (None, uri):
        with pytest.raises(StoreError, match="never writes") as found:
            AttnKNNClassifier.load(folder, trusted_store=named)
        assert found.value.reason == "invalid"


def test_a_memory_in_milvus_is_refused_with_what_to_do(own, tmp_path):
    folder = placed(own, tmp_path / "m", "milvus+http://h:19530/#nearwise")
    with pytest.raises(StoreError, match="PostgreSQL") as found:
        AttnKNNClassifier.load(folder, trusted_store="milvus+http://h")
    assert found.value.reason == "older" and "with the version that wrote it" in str(found.value)


def test_what_is_a_link_is_not_the_folders_own_store(own, tmp_path):
    folder = shutil.copytree(own, tmp_path / "m")
    shutil.move(folder / "rows", tmp_path / "elsewhere")
    (folder / "rows").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link") as found:
        AttnKNNClassifier.load(folder)
    assert found.value.reason == "foreign"


@pytest.mark.parametrize("opened", OPENERS.values(), ids=OPENERS)
def test_a_store_is_not_named_where_the_folder_holds_the_memory(own, model, tmp_path, opened):
    model.save(tmp_path / "held")
    folders = [own, tmp_path / "held"]
    for folder in folders:
        with pytest.raises(ValueError, match="in its own folder"):
            opened(folder, trusted_store=tmp_path)


def test_a_memory_is_opened_and_changed_where_the_user_says(model, tmp_path):
    uri = str(tmp_path / "elsewhere")
    move_memory(model, tmp_path / "m", uri)
    with LiveModel(tmp_path / "m", trusted_store=uri) as live:
        live.add(X[:2], Y[:2])
        live.undo(1)
        live.compact()
        assert live.catch_up() == 2
    assert [c.kind for c in history_of(tmp_path / "m", uri)] == ["add", "remove"]
    loaded = AttnKNNClassifier.load(tmp_path / "m", trusted_store=uri)
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("asks", ["clear", "md5"])
def test_the_password_goes_out_by_scram_only(own, tmp_path, asks):
    require("psycopg", "pgvector")
    with listener(asks) as heard:
        uri = f"postgresql://u@127.0.0.1:{heard.port}/x"
        with pytest.raises(OSError, match="authentication method requirement"):
            AttnKNNClassifier.load(placed(own, tmp_path / "m", uri), trusted_store=uri)
    assert heard.n_connections and b"hunter2" not in heard.arrived
    assert b"p\0\0" not in heard.arrived  # no answer to the request for a password


def test_settings_are_those_of_the_user_and_none_are_the_folders(own, tmp_path):
    require("psycopg", "pgvector")
    with listener("clear") as heard:
        uri = f"postgresql://mallory@127.0.0.1:{heard.port}/x"
        folder = placed(own, tmp_path / "m", f"{uri}?require_auth=password&application_name=evil")
        mine = f"postgresql://alice@127.0.0.1:{heard.port}/x?application_name=mine"
        with pytest.raises(OSError, match="authentication method requirement"):
            AttnKNNClassifier.load(folder, trusted_store=mine)
        assert b"alice" in heard.arrived and b"mine" in heard.arrived
        assert b"mallory" not in heard.arrived and b"evil" not in heard.arrived
        with pytest.raises(OSError, match="could not be used"):  # as the user chose
            AttnKNNClassifier.load(folder, trusted_store=f"{mine}&require_auth=password")
        assert b"hunter2" in heard.arrived


PLACES = {
    "postgresql://me@db.example/d": "postgresql://db.example/d#nearwise",
    "postgres://DB.Example:5432/d?sslmode=require#s": "postgresql://db.example/d#s",
    "postgresql://a:1,b:2/d": "postgresql://a:1,b:2/d#nearwise",
    "postgresql:///d?host=/run/x&service=y": "postgresql://%2Frun%2Fx/d#nearwise",
    "postgresql://[::1]:99/d?host=other": "postgresql://other:99/d#nearwise",
}


@pytest.mark.parametrize("uri", PLACES)
def test_a_place_is_said_without_user_and_settings_and_is_a_uri_of_itself(uri):
    require("psycopg")
    place = engine_of(uri).located(uri)
    assert place == PLACES[uri] == engine_of(place).located(place)
