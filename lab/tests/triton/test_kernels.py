"""The Triton kernels: right under Triton's interpreter, and real code for the GPUs they are for."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nearwise.functional import attention_implementation, knn_attention
from nearwise.functional.tokens import checked

HERE = Path(__file__).parent
has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def run(*command, **variables):
    """Run Python in a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**environment, **variables},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )


@has_triton
@pytest.mark.slow  # minutes in the interpreter; the kernels run only where they are asked for
@pytest.mark.parametrize("which", ["not slow", "slow"])
def test_the_kernels_equal_the_reference(which):
    checks = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", which]
    done = run(*checks, HERE / "test_kernel_results.py", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def compiled_cases(capability, cases, folder):
    """Compile some cases of `compile_kernels.py`, all where none is named."""
    done = run(
        HERE / "compile_kernels.py",
        capability,
        *cases,
        PYTHONPATH=os.pathsep.join([str(HERE.parents[2]), *sys.path[1:]]),
        TRITON_CACHE_DIR=str(folder),
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@has_triton
@pytest.mark.parametrize(("capability", "case"), [(80, "bfloat16"), (90, "masks")])
def test_the_kernels_become_machine_code(capability, case, tmp_path):
    compiled = compiled_cases(capability, [case], tmp_path)
    assert len(compiled) == 2  # forward and backward
    for one in compiled:
        assert one["shared"] <= 99 * 1024, one  # what a block may have on every GPU since 8.0
        assert one["spilled"] <= 64, one  # bytes a thread


@pytest.mark.slow
@has_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_become_machine_code_in_all_cases(capability, tmp_path):
    for one in compiled_cases(capability, [], tmp_path):
        assert one["shared"] <= 99 * 1024, one
        assert one["spilled"] <= 320, one


@has_triton
@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter takes tokens on a CPU"
)
def test_tokens_on_a_cpu_run_in_plain_operations_with_one_warning(monkeypatch):
    monkeypatch.setattr(checked, "_verdicts", {})
    monkeypatch.setattr(checked, "_warned", set())
    tokens = [torch.randn(1, 8, 4) for _ in range(3)]
    with (
        attention_implementation("triton"),
        pytest.warns(RuntimeWarning, match="lie on cpu, not on a CUDA device") as caught,
    ):
        outputs = [knn_attention(*tokens, 3) for _ in range(2)]
    assert len(caught) == 1
    with attention_implementation("plain"):
        assert all(torch.equal(x, knn_attention(*tokens, 3)) for x in outputs)


def test_kernels_are_imported_only_when_they_are_asked_for_and_their_extra_is_named():
    code = (
        "import sys, torch\n"
        "from nearwise.functional import attention_implementation, knn_attention\n"
        "knn_attention(*(torch.randn(1, 8, 4) for _ in range(3)), 3)\n"
        "assert not any(name.startswith('nearwise_lab') for name in sys.modules)\n"
        "sys.modules['triton'] = None\n"
        "attention_implementation('triton').__enter__()"
    )
    assert run("-c", code).stderr.endswith(
        'ImportError: The implementation "triton" needs the extra "triton": '
        "pip install nearwise[triton]\n"
    )
