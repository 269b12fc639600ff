"""``--store``: where a model's memory is opened is the user's word, in every command."""

import pytest

from tests.estimators.stored.folders import placed
from tests.memory.stores.listeners import listener

pytest.importorskip("lance")

COMMANDS = {
    "predict": ("predict", "MODEL", "NEW"),
    "embed": ("embed", "MODEL", "NEW", "--out", "OUT.csv"),
    "evaluate": ("evaluate", "MODEL", "MORE"),
    "inspect": ("inspect", "MODEL"),
    "verify": ("verify", "MODEL"),
    "history": ("history", "MODEL"),
    "add": ("add", "MODEL", "MORE"),
    "relabel": ("relabel", "MODEL", "3", "yes"),
    "remove": ("remove", "MODEL", "3"),
    "undo": ("undo", "MODEL", "1"),
    "compact": ("compact", "MODEL"),
    "serve": ("serve", "MODEL", "--port", "0"),
}
ALSO_RUN = [name for name in COMMANDS if name not in ("evaluate", "serve")]


@pytest.fixture
def asked(nearwise, tables, tmp_path):
    """Give a function that runs a command about a model."""

    def run(command, folder, *options):
        words = {"MODEL": folder, "NEW": tables / "new.csv", "MORE": tables / "test.csv"}
        words |= {"OUT": tmp_path / "out", "OUT.csv": tmp_path / "out.csv"}
        return nearwise(*(words.get(word, word) for word in COMMANDS[command]), *options)

    return run


@pytest.fixture
def moved(nearwise, model, tmp_path):
    """A model whose memory is in a folder elsewhere."""
    place = tmp_path / "elsewhere"
    result = nearwise("move", model, "--out", tmp_path / "m", "--store", place)
    assert result.exit_code == 0
    assert f"nearwise inspect {tmp_path / 'm'} --store {place}" in result.err.replace("\n", " ")
    return tmp_path / "m", place


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_reaches_a_server_that_the_folder_names(
    asked, nearwise, model, tmp_path, monkeypatch, command
):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    assert nearwise("move", model, "--out", tmp_path / "own").exit_code == 0
    with listener("clear") as heard:
        uri = f"postgresql://u@127.0.0.1:{heard.port}/x"
        result = asked(command, placed(tmp_path / "own", tmp_path / "m", uri))
        assert heard.is_untouched
    assert result.exit_code == 2
    assert f"--store 'postgresql://127.0.0.1:{heard.port}/x#nearwise'" in result.err


def test_commands_open_the_store_that_is_named_and_suggest_to_name_it_again(asked, moved):
    folder, place = moved
    for command in ("add", *ALSO_RUN):
        assert "--store" in asked(command, folder).err
        result = asked(command, folder, "--store", place)
        assert result.exit_code == 0, result.err
        if "take it back" in result.err:
            assert f"--store {place}" in result.err
    assert "in a store" in asked("evaluate", folder, "--store", place).err
    assert "names another" not in asked("history", folder, "--store", place / ".").err
    assert "another" in asked("history", folder, "--store", place.parent).err


def test_a_model_in_a_store_is_refused_by_move_before_its_store_is_opened(nearwise, moved):
    folder, place = moved
    place.rename(place.with_name("hidden"))
    result = nearwise("move", folder, "--out", folder.parent / "other", "--store", place)
    assert result.exit_code == 2 and "in a store already" in result.err
