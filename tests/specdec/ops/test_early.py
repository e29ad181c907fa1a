"""Kernels that are launched early wait before they touch memory, and are asked to start early on Hopper only."""

import ast
from pathlib import Path

import pytest
import torch

import backends.deepseek_v4.ops
import specdec.ops

triton = pytest.importorskip("triton")
early = pytest.importorskip("specdec.ops.early")

FOLDERS = [Path(package.__file__).parent for package in (backends.deepseek_v4.ops, specdec.ops)]
WAITS = ("begin", "wait_for_earlier")
# Reads of weights that come before the wait.
BEFORE = ("tl.arange", "tl.program_id", "_load_fn")


def early_kernels() -> list[tuple[str, ast.FunctionDef]]:
    """Every function that is decorated as an early kernel, by file."""
    found = []
    for file in sorted(path for folder in FOLDERS for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [ast.unparse(each) for each in node.decorator_list] if isinstance(node, ast.FunctionDef) else []
            if "EarlyKernel" in names:
                found.append((f"{file.parent.name}/{node.name}", node))
    return found


@pytest.mark.parametrize("kernel", [pytest.param(node, id=name) for name, node in early_kernels()])
def test_an_early_kernel_waits_before_it_touches_memory(kernel):
    calls = []
    for statement in kernel.body:
        names = [ast.unparse(each.func) for each in ast.walk(statement) if isinstance(each, ast.Call)]
        if any(name in WAITS for name in names):
            assert isinstance(statement, ast.Expr) and names[0] in WAITS, "the wait is a statement of its own"
            break
        calls += names
    else:
        pytest.fail("it never waits for the kernels before it")
    assert set(calls) <= set(BEFORE)
    assert kernel.args.args[-1].arg == "EARLY"


def test_there_are_early_kernels():
    assert len(early_kernels()) > 20


class Recorder:
    """Stands where a compiled kernel would and keeps how it was launched."""

    def __getitem__(self, grid):
        return lambda *args, **options: (grid, args, options)


@pytest.mark.gpu
def test_hopper_starts_kernels_early():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0")
    assert early.can_launch_early()
    assert early.EarlyKernel(Recorder())[2, 3](7, A=1) == ((2, 3), (7,), {"A": 1, "EARLY": True, "launch_pdl": True})


def test_the_interpreter_starts_none_early(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert not early.can_launch_early()
    assert early.EarlyKernel(Recorder())[2,](7) == ((2,), (7,), {"EARLY": False})
