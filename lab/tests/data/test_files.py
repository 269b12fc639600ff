"""Promises of the search for files: three places in order, whole and checked downloads."""

import hashlib
import http.server
import threading
from pathlib import Path

import pytest
from nearwise_lab.data import files, load_dataset
from nearwise_lab.data.files import ChecksumError, DataFile, cache_dir, fetch, locate

CONTENT = b"1,2,g\n" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A file server on this machine; gives its address and its folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *args):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()
        thread.join()


def test_a_download_arrives_whole_and_leaves_nothing_beside_it(server, tmp_path):
    address, folder = server
    (folder / "a.data").write_bytes(CONTENT)
    target = tmp_path / "into" / "new" / "a.data"
    assert fetch(f"{address}/a.data", target, (DIGEST,)) == target
    assert target.read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir()] == ["a.data"]


def test_a_changed_file_is_refused_and_the_old_copy_kept(tmp_path):
    served = tmp_path / "served.data"
    served.write_bytes(CONTENT + b"more")
    target = tmp_path / "cache-copy" / "a.data"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(ChecksumError, match=rf"has sha256 \w+, expected {DIGEST}"):
        fetch(served.as_uri(), target, (DIGEST,))
    assert target.read_bytes() == b"old"
    assert [p.name for p in target.parent.iterdir()] == ["a.data"]


def test_a_broken_connection_leaves_nothing(server, tmp_path):
    address, _ = server
    target = tmp_path / "cache-copy" / "a.data"
    with pytest.raises(OSError, match="404"):
        fetch(f"{address}/a.data", target, (DIGEST,))
    assert list(target.parent.iterdir()) == []


def test_a_connection_that_ends_early_leaves_nothing(tmp_path):
    class Half(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000])

        def log_message(self, *args):
            """Say nothing."""

    target = tmp_path / "cache-copy" / "a.data"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Half) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(OSError, match=r"ended after 1,000 of 6000 bytes|IncompleteRead"):
            fetch(f"http://127.0.0.1:{httpd.server_port}/a.data", target, ())
        httpd.shutdown()
        thread.join()
    assert list(target.parent.iterdir()) == []


def test_the_places_are_tried_in_order(server, tmp_path, monkeypatch):
    address, folder = server
    monkeypatch.setattr(files, "UCI_BASE", address)
    (folder / "a.data").write_bytes(CONTENT)
    file = DataFile("set/a.data", "a.data", (DIGEST,))
    root = tmp_path / "root"
    (root / "set").mkdir(parents=True)

    downloaded = locate(file, data_root=root)
    assert downloaded == cache_dir() / "set" / "a.data"
    (folder / "a.data").unlink()  # from here on the cache must do
    assert locate(file) == downloaded

    (root / "set" / "a.data").write_bytes(b"mine")
    assert locate(file, data_root=root) == root / "set" / "a.data"
    monkeypatch.setenv("NEARWISE_DATA", str(root))
    assert locate(file) == root / "set" / "a.data"


def test_a_checksum_error_reaches_the_user_of_load_dataset(server, monkeypatch):
    address, folder = server
    monkeypatch.setattr(files, "UCI_BASE", address)
    (folder / "magic").mkdir()
    (folder / "magic" / "magic04.data").write_text("<html>moved</html>")
    with pytest.raises(ChecksumError, match="nothing was kept"):
        load_dataset("magic04")


def test_with_no_copy_the_error_names_the_three_places_and_what_to_do(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("letter", data_root=tmp_path / "empty", download=False)
    message = str(caught.value)
    assert f"1. data_root: no file {tmp_path / 'empty' / 'tabular'}" in message
    assert f"2. cache: no file {tmp_path / 'cache' / 'nearwise' / 'data' / 'tabular'}" in message
    assert "3. download: switched off (would be https://archive.ics.uci.edu/" in message
    assert "NEARWISE_DATA=FOLDER" in message


def test_a_download_that_cannot_be_written_names_address_and_folder(tmp_path):
    served = tmp_path / "a.data"
    served.write_bytes(CONTENT)
    too_long = tmp_path / "kept" / ("n" * 250)  # beside what is added while it is written
    with pytest.raises(OSError, match=r"cannot copy file:.*a\.data to .*kept: .*too long"):
        fetch(served.as_uri(), too_long, (DIGEST,))
    assert not list(too_long.parent.iterdir())


def test_without_network_the_error_says_why_the_download_failed():
    with pytest.raises(FileNotFoundError, match=r"3\. download: cannot copy https:.*"):
        load_dataset("ionosphere")


def test_cifar10_features_says_that_it_is_computed():
    with pytest.raises(FileNotFoundError, match="cannot be downloaded, it is computed") as caught:
        load_dataset("cifar10-features")
    assert "NEARWISE_DATA): not set" in str(caught.value)
    assert "cifar10-features/squeezenet_pca192.npz" in str(caught.value)


def test_a_data_root_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"absent' is not a folder"):
        load_dataset("letter", data_root=tmp_path / "absent")


def test_a_cache_that_cannot_be_made_is_one_of_the_reasons(tmp_path, monkeypatch):
    (tmp_path / "blocked").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    with pytest.raises(FileNotFoundError, match=r"3\. download: cannot make the folder"):
        load_dataset("letter")


def test_a_relative_cache_variable_is_ignored_as_its_standard_asks(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/place")
    assert cache_dir().is_relative_to(Path.home())
