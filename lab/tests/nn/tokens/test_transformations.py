"""What torch can make of each layer of the lab: the table in lab/docs/layers.md, cell by cell."""

from pathlib import Path

import pytest

from lab.tests.nn.tokens.cases import CASES
from tests.nn.tokens.test_transformations import (
    check_cell,
    compiles_by_inductor,
    each_cell,
    table_of,
)

DOCS = Path(__file__).parents[3] / "docs" / "layers.md"
MAKE = {case.layer.__name__: case.make for case in reversed(CASES)}


def test_the_table_has_every_layer():
    assert set(table_of(DOCS)) == set(MAKE)


@each_cell(MAKE, fast="ConvNNAttention")
def test_the_table_tells_what_holds(name, column, tmp_path):
    check_cell(table_of(DOCS)[name][column], MAKE[name](), column, tmp_path)


@pytest.mark.slow
def test_inductor_compiles_them_too():
    compiles_by_inductor(MAKE["ConvNNAttention"]().eval())
