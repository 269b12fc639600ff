"""Compile the Triton kernels to machine code for a GPU that need not be there.

Run in a process of its own by `test_kernels.py`: ``python compile_kernels.py 90 [NAME ...]``. What
would be launched is built through Triton's own specialisation and its ptxas; a line per kernel
tells the registers, the bytes spilled, and the shared memory.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from nearwise_lab.triton import backward, forward, launch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from nearwise.functional.tokens.problem import make_problem

DEFAULTS = {
    "metric": "matmul",
    "scale": None,
    "attn_mask": None,
    "key_padding_mask": None,
    "is_causal": False,
    "include_self": "candidate",
    "candidates": None,
    "dropout_p": 0.0,
    "generator": None,
}
MASKS = {
    "key_padding_mask": torch.zeros(2, 80).bool(),
    "is_causal": True,
    "include_self": "never",
}
HALF = torch.bfloat16
# name: (dtype, shape, neighbors, options)
CASES = {
    "bfloat16": (HALF, (2, 3, 197, 64), 9, {}),
    "float16": (torch.float16, (2, 3, 197, 64), 9, {}),
    "float32": (torch.float32, (2, 3, 197, 64), 9, {}),
    "one": (HALF, (1, 1, 1, 64), 1, {}),
    "k32": (HALF, (2, 12, 4096, 64), 32, {}),
    "k100": (HALF, (2, 3, 197, 64), 100, {}),
    "k256": (HALF, (2, 3, 300, 64), 256, {}),
    "k256-float32": (torch.float32, (2, 3, 300, 64), 256, {}),
    "causal": (HALF, (2, 3, 1024, 64), 9, {"is_causal": True}),
    "masks": (HALF, (2, 2, 80, 64), 9, MASKS),
    "masks-float32-l2": (torch.float32, (2, 2, 80, 40), 9, {**MASKS, "metric": "euclidean"}),
    "never": (HALF, (2, 2, 80, 64), 9, {"include_self": "never", "metric": "cosine"}),
    "wide": (HALF, (2, 1, 197, 128), 9, {}),
    "wide-l2": (HALF, (2, 1, 197, 128), 9, {"metric": "euclidean"}),
    "wide-float32": (torch.float32, (2, 1, 197, 128), 32, {}),
    "narrow": (torch.float16, (2, 2, 80, 3), 2, {"metric": "euclidean"}),
}


class NoDevice:
    """What Triton asks a driver for when it compiles."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


class Compiling:
    """Kernels of a module that are compiled where they would be launched."""

    def __init__(self, module, found):
        self.module, self.found = module, found

    def __getattr__(self, name):
        kernel = getattr(self.module, name)
        found = self.found

        class Launch:
            def __getitem__(self, grid):
                def compile_it(*args, **options):
                    found.append((name, kernel.warmup(*args, grid=grid, **options)))

                return compile_it

        return Launch()


def describe(capability, name, compiled):
    """Registers, spills and shared memory of a compiled kernel, as ptxas tells them."""
    # Newer wheels hold one for older GPUs and one for all: the right one takes the text.
    tools = (Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("ptxas*")
    gpu_name = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(compiled.asm["ptx"])
        rest = ["-v", f"--gpu-name={gpu_name}", source, "-o", Path(folder) / "kernel.o"]
        tries = [subprocess.run([t, *rest], capture_output=True, text=True) for t in tools]
    said = next(done.stderr for done in tries if done.returncode == 0)
    assert "cubin" in compiled.asm
    words = said.replace(",", " ").split()
    return {
        "kernel": name,
        "registers": int(words[words.index("Used") + 1]),
        "spilled": int(words[words.index("spill") - 2]),
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
    }


def compile_case(capability, name):
    dtype, shape, n_neighbors, options = CASES[name]
    found = []
    tokens = [torch.randn(shape).to(dtype) for _ in range(3)]
    problem = make_problem(*tokens, n_neighbors, **{**DEFAULTS, **options})
    launch.forward_kernels = Compiling(forward, found)
    launch.backward_kernels = Compiling(backward, found)
    output, indices, weights = launch.attend(problem)
    launch.backward(problem, indices.fill_(0), weights, output, weights)
    return [{"case": name, **describe(capability, *one)} for one in found]


def main():
    capability, *names = sys.argv[1:]
    driver.set_active(NoDevice(int(capability)))
    for name in names or CASES:
        for line in compile_case(int(capability), name):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
