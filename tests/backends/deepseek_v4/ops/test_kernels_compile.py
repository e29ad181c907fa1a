"""Every Triton kernel of a pass compiles for Hopper at V4-Flash's sizes, and keeps its values in registers.

The interpreter that other tests run kernels in accepts what the compiler refuses: branches of different types, ranges
that are no power of two, products of small tiles, conversions that the hardware lacks. The compiler needs no GPU; it
runs in a process of its own because the interpreter is chosen once per process.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# libdevice reduces large angles through a small array.
MAY_USE_STACK = ("pass_angles.",)
# A few registers outside of any loop cost nothing.
LARGEST_STACK = 16
TIME_LIMIT_S = 600


@pytest.fixture(scope="module")
def kernels() -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "experiments.gpu.compile_kernels", "--quick", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kernel_compiles_and_fits_a_multiprocessor(kernels):
    assert [each for each in kernels if each["error"]] == []


def test_no_tuned_kernel_spills_registers(kernels):
    spilling = [e for e in kernels if e["stack"] > LARGEST_STACK and not e["name"].startswith(MAY_USE_STACK)]
    assert spilling == []


@pytest.mark.parametrize(
    "operator",
    [
        "compress", "experts", "finish_inputs", "finish_queries", "gather_rows", "hyper", "index_queries",
        "index_scores", "join_streams", "linear", "norm_rows", "pass_angles", "pass_indices", "route", "select_rows",
        "sinkhorn", "sparse_attention",
    ],
)  # fmt: skip
def test_every_operator_is_among_the_kernels(kernels, operator):
    assert any(each["name"].startswith(f"{operator}.") for each in kernels)
