"""Run commands on folders, each in a fork of its own, and print what came of it as JSON.

``python open_folders.py DATA FOLDER ...`` prints a line for each folder: its name, and for each
command the exit code and the end of its messages; a signal or no answer in time ends them.
"""

import contextlib
import io
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

COMMANDS = ("verify", "history", "inspect", "predict", "load", "remove")  # the last one changes it
SECONDS = 100  # on a busy machine
connections = []


def no_connection(self, address):
    connections.append(repr(address))
    raise OSError("no connections")


def run(command, folder, data):
    from nearwise.cli import main
    from nearwise.estimators import AttnKNNClassifier

    extras = {"predict": [data, "--out", "-"], "remove": ["0"]}
    said, shown = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
        try:
            if command == "load":
                AttnKNNClassifier.load(folder)
            else:
                main([command, folder, *extras.get(command, [])])
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = 2 if isinstance(error, (ValueError, MemoryError)) else 1
            said.write(f"{type(error).__name__}: {error}")
    return code, said.getvalue()[-2_000:]


def inventory(folder):
    """What a folder holds: kind, size, time and the bytes of small files."""
    found = {}
    for path in Path(folder).iterdir():
        look = path.lstat()
        small = stat.S_ISREG(look.st_mode) and look.st_size < 10**6
        content = path.read_bytes() if small else b""
        found[path.name] = (look.st_mode, look.st_size, look.st_mtime_ns, content)
    return found


def child(folder, data, report):
    socket.socket.connect = socket.socket.connect_ex = no_connection
    signal.alarm(SECONDS)
    for command in COMMANDS:
        before = inventory(folder)
        code, said = run(command, folder, data)
        line = {"command": command, "code": code, "said": said, "connections": connections}
        line["changed"] = inventory(folder) != before
        os.write(report, json.dumps(line).encode() + b"\n")


def main_of_all(data, folders):

    for folder in folders:
        here, there = os.pipe()
        if (process := os.fork()) == 0:
            child(folder, data, there)
            os._exit(0)
        os.close(there)
        with os.fdopen(here) as lines:
            found = [json.loads(line) for line in lines]
        status = os.waitpid(process, 0)[1]
        print(json.dumps({"folder": folder, "status": status, "found": found}), flush=True)


if __name__ == "__main__":
    main_of_all(sys.argv[1], sys.argv[2:])
