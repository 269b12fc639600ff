"""Wrapping of messages to the width of a terminal, with a hanging indent."""

import re

from rich.cells import cell_len

from nearwise.conditions import PROGRAM

_GAP = re.compile(r"( *\S.*?  +)\S")  # up to the second column of a line
_COMMAND = re.compile(rf"(.*:) ({PROGRAM} .*)")  # a message that ends with a command
_HANG = 2
_PERCENT, _GLUED = " %", "\N{NO-BREAK SPACE}%"  # a number and its sign stay together


def wrapped(text: str, width: int) -> list[str]:
    """Break a message at blanks into lines of at most `width` cells.

    Further lines are indented: by two blanks more than the first, or to the second column if two
    blanks or more divide the line in columns. A word that is wider than the terminal stays whole.
    A command at the end gets a line of its own, unbroken, so that it can be copied.
    """
    lines = []
    for line in text.split("\n"):
        command = _COMMAND.fullmatch(line) if cell_len(line) > width else None
        lines += _broken(line if command is None else command[1], width)
        if command is not None:
            lines.append(" " * _HANG + command[2])
    return lines


def _broken(line: str, width: int) -> list[str]:
    indent = len(line) - len(line.lstrip(" "))
    column = _GAP.match(line)
    hang = indent + _HANG
    if column is not None and cell_len(column[1]) <= width // 2:
        hang = cell_len(column[1])
    head = column[1] if column is not None else line[:indent]
    lines, current, filled = [], head, False
    for glued in line[len(head) :].replace(_PERCENT, _GLUED).split(" "):
        word = glued.replace(_GLUED, _PERCENT)
        if filled and cell_len(current) + 1 + cell_len(word) > width:
            lines.append(current)
            current, filled = " " * hang, False
        current += f" {word}" if filled else word
        filled = True
    return [*lines, current]
