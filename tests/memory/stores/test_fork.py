"""A store that was opened before a fork is not used after it, in whatever engine it is."""

import json
import os
import signal
import subprocess
import sys

import pytest

from nearwise.memory import StoreError
from nearwise.memory.stores import engine_of
from tests.memory.stores.cases import SCHEMA, SUMMARY, assert_same, edit, everything, some_rows
from tests.memory.stores.servers import require

ROWS = some_rows(60)
_SECONDS = 20  # that a child may take; it takes milliseconds


@pytest.fixture
def store(place):
    made = place.create(SCHEMA, [ROWS], SUMMARY)
    yield made
    made.drop()


def in_a_child(do):
    """Give what `do` returned in a fork of this process, or how that ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_SECONDS)
        try:
            os.write(write, json.dumps(do()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        answer = said.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return json.loads(answer)


def reasons(calls):
    """Why each call was refused."""
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = None
        except StoreError as error:
            found[name] = error.reason
            assert "Open the model after the fork" in str(error)
    return found


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_fork_is_told_to_open_the_model_and_the_parent_goes_on(store):
    reader, query = store.reader(), ROWS.keys["all"][:2]
    everything(reader)
    calls = {
        "search": lambda: reader.search("all", query, 3),
        "fetch": lambda: reader.fetch(ROWS.ids[:2], rows=True),
        "scan": lambda: everything(reader),
        "reader": store.reader,
        "apply": lambda: store.apply(edit(1, removed=ROWS.ids[:1]), 0),
        "history": lambda: store.history(store.lineage),
        "find": lambda: store.find(store.lineage, version=1),
        "snapshot": store.snapshot,
        "verify": store.verify,
    }
    assert in_a_child(lambda: reasons(calls)) == dict.fromkeys(calls, "forked")
    assert in_a_child(lambda: reasons({"close": store.close})) == {"close": None}
    assert_same(everything(store.reader()), ROWS)
    assert store.apply(edit(1, removed=ROWS.ids[:1]), 0).version == 1


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_fork_may_open_a_store_of_a_server_that_its_parent_uses(place):
    uri = place.new_uri()
    store = place.create(SCHEMA, [ROWS], SUMMARY, uri)

    def opened():
        own = engine_of(uri).open(uri)
        return everything(own.reader()).ids.tolist()

    assert in_a_child(opened) == ROWS.ids.tolist()
    assert_same(everything(store.reader()), ROWS)
    store.drop()


_FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from nearwise.memory.stores.disk import DiskStore
if sys.argv[2] == "used":
    list(DiskStore.open(sys.argv[1]).reader().scan())
else:
    import lance
if os.fork() == 0:
    signal.alarm(20)
    try:
        print(sum(map(len, DiskStore.open(sys.argv[1]).reader().scan())), flush=True)
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
sys.exit(os.wait()[1])
"""


@pytest.mark.parametrize("before", ["used", "imported"])
def test_a_fork_opens_a_store_on_disk_unless_its_parent_has_used_one(tmp_path, before):
    require("lance", "faiss")
    engine_of("x").create(str(tmp_path / "s"), SCHEMA, [ROWS], SUMMARY)
    command = [sys.executable, "-c", _FORKED, str(tmp_path / "s"), before]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "in none before" in told if before == "used" else told == "60\n"
