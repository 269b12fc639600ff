"""Compiled loops use numba's public names alone, so that they outlive its releases."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import nearwise

PUBLIC = {("numba", "njit"), ("numba", "types"), ("numba.extending", "overload")}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_only_public_names_of_numba_are_imported_and_none_of_llvmlite():
    paths = Path(nearwise.__file__).parent.glob("**/*.py")
    used = {name for path in paths for name in imports_of(path)}
    used = {name for name in used if name[0].split(".")[0] in ("numba", "llvmlite")}
    assert used
    assert used <= PUBLIC


def test_code_is_compiled_without_being_kept_where_the_disk_is_full(tmp_path):
    script = """
import shutil
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0)
import numpy as np
from nearwise.functional.kernels import norms_of
norms, inverse = norms_of(np.eye(3, dtype=np.float32))
assert norms.tolist() == inverse.tolist() == [1, 1, 1]
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is full, so that compiled code is not kept") == 1
    assert not list(tmp_path.rglob("*.nb*"))
