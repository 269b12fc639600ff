"""A module's output by ONNX Runtime."""

import pytest
import torch


def onnx_outputs(module, inputs, path, *others, **export):
    """Export a module with its inputs, and run the file on them, then on each of `others`.

    Skips the test where the packages of the extra "dev" are missing.
    """
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(module, inputs, path, dynamo=True, **export)
    session = runtime.InferenceSession(path)
    names = [argument.name for argument in session.get_inputs()]
    outputs = []
    for given in (inputs, *others):
        arrays = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        outputs.append(torch.from_numpy(session.run(None, arrays)[0]))
    return outputs
