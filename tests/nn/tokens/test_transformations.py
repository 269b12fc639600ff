"""What torch can make of each layer: the table in docs/reference/layers.md, cell by cell.

The table of the lab's layers is tried by the same functions.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch.func import functional_call, grad, vmap

from tests.nn.tokens.cases import CASES, TORCHS, tokens
from tests.reference.onnx_export import onnx_outputs

DOCS = Path(__file__).parents[3] / "docs/reference/layers.md"
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


MAKE = {case.layer.__name__: case.make for case in reversed(CASES)}
MAKE["KNNMultiheadAttention"] = TORCHS.make


def transform(layer, _):
    parameters, x = dict(layer.named_parameters()), tokens(3)

    def loss(parameters, x):
        return functional_call(layer, parameters, (x[None],)).square().sum()

    per_sample = vmap(grad(loss), (None, 0), randomness="different")(parameters, x)
    for i in range(3):
        layer.zero_grad()
        layer(x[i : i + 1]).square().sum().backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(per_sample[name][i], parameter.grad, **CLOSE)


def differentiate_twice(layer, _):
    x = tokens(1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(copy.deepcopy(layer).double(), (x,), fast_mode=True)


def compile_whole(layer, _, sizes=(17,), **options):
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", **options)
    for n_tokens in sizes:
        results = []
        for call in (compiled, layer):
            x = tokens(2, n_tokens).requires_grad_()
            output = call(x)
            output.square().sum().backward()
            results.append((output.detach(), x.grad))
        torch.testing.assert_close(*results, **CLOSE)


def compile_for_any_length(layer, folder):
    compile_whole(layer, folder, sizes=(17, 30, 41), dynamic=True)


def export_for_any_batch(layer, _):
    batch = torch.export.Dim("batch")
    exported = torch.export.export(layer, (tokens(),), dynamic_shapes=({0: batch},)).module()
    for x in (tokens(2), tokens(5)):
        torch.testing.assert_close(exported(x), layer(x), **CLOSE)


def export_for_any_length(layer, _):
    length = torch.export.Dim("length", min=8, max=512)
    exported = torch.export.export(layer, (tokens(),), dynamic_shapes=({1: length},)).module()
    for x in (tokens(2, 8), tokens(2, 30)):
        torch.testing.assert_close(exported(x), layer(x), **CLOSE)


def write_onnx(layer, folder):
    (output,) = onnx_outputs(layer, (tokens(),), folder / "layer.onnx")
    torch.testing.assert_close(output, layer(tokens()), **CLOSE)


CHECKS = {  # by the heads of the table's columns
    "`torch.func`": transform,
    "gradients of gradients": differentiate_twice,
    "`torch.compile`": compile_whole,
    "compiled, any length": compile_for_any_length,
    "`torch.export`": export_for_any_batch,
    "exported, any length": export_for_any_length,
    "ONNX": write_onnx,
}
AT_ONCE = {"`torch.func`", "gradients of gradients"}


def table_of(page):
    """Cells of a page's table by layer and column."""
    lines = page.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| layer | `torch.func`"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]
    ]
    table = {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert all(list(row) == list(CHECKS) for row in table.values())
    return table


def each_cell(layers, fast):
    """Every layer with every column; compilers of other layers than `fast` only in ./run slow."""
    return pytest.mark.parametrize(
        ("name", "column"),
        [
            pytest.param(name, column, marks=() if at_once else pytest.mark.slow)
            for name in layers
            for column in CHECKS
            for at_once in [column in AT_ONCE or name == fast]
        ],
    )


def check_cell(cell, layer, column, folder):
    """Do what a column says; a cell that says "no" is wrong where that works."""
    if cell == "yes":
        CHECKS[column](layer.eval(), folder)
        return
    assert cell.startswith("no")
    with pytest.raises(Exception):  # noqa: B017 (errors of torch, of many kinds)
        CHECKS[column](layer.eval(), folder)


def test_the_table_has_every_layer():
    assert set(table_of(DOCS)) == set(MAKE)


@each_cell(MAKE, fast="KNNAttention")
def test_the_table_tells_what_holds(name, column, tmp_path):
    check_cell(table_of(DOCS)[name][column], MAKE[name](), column, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_inductor_compiles_them_too(name):
    compiles_by_inductor(MAKE[name]().eval())


def compiles_by_inductor(layer):
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), layer(tokens()), **CLOSE)
