"""Programs on the device of `strict_device`, which a process can register only once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

ROOT = Path(__file__).parents[2]


def run_program(program: str, *arguments: object) -> None:
    """Run a program in a process of its own; fail with the end of what it says if it fails."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot register a device written in Python")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert not done.returncode, done.stderr[-3000:]
