"""Compiled loops use numba's public names alone, so that they outlive its releases."""

import ast
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
