"""Sentences in the help of the lab's commands are short, as in that of the library's."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from nearwise_lab.cli import register

from tests.repository.test_words import MOST_OF_HELP, help_texts, long_sentences


def commands_below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Names and commands of a group and of the groups in it."""
    yield name, command
    if isinstance(command, typer.core.TyperGroup):
        context = command.make_context(name, [], resilient_parsing=True)
        for one in command.list_commands(context):
            yield from commands_below(command.get_command(context, one), f"{name} {one}")


def lab_commands() -> dict[str, Any]:
    """Commands of the lab by name, on an app of their own."""
    app = typer.Typer(add_completion=False)
    register(app)
    return dict(commands_below(typer.main.get_command(app), "nearwise"))


COMMANDS = lab_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short(name: str):
    texts = help_texts(COMMANDS[name])
    assert [long for text in texts for long in long_sentences(text, MOST_OF_HELP)] == []


def test_commands_of_groups_are_found():
    assert {"nearwise compare", "nearwise vit train", "nearwise field compare"} <= set(COMMANDS)
