"""Imports go one way: specdec <- backends, drafters <- experiments; read from the syntax tree."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"specdec", "backends", "drafters", "experiments", "conf", "tests"}
CONFIGURATION = {"hydra", "omegaconf", "wandb"}
NUMERIC = {"torch", "numpy"}

# What each package may import of the project; a prefix stands for everything below it.
PROJECT_ALLOWED = {
    "specdec": ("specdec",),
    "backends": (
        "backends",
        "specdec.api",
        "specdec.errors",
        "specdec.checks",
        "specdec.layout",
        "specdec.cache",
        "specdec.ops.early",
    ),
    "drafters": ("drafters", "specdec.api", "specdec.errors", "specdec.checks"),
}
# What each package may import from outside; vendor kernels and kernels' own language live in named places.
OUTSIDE_ALLOWED = {
    "specdec": NUMERIC,
    "backends": NUMERIC | {"safetensors", "tokenizers", "transformers"},
    "drafters": NUMERIC | {"arctic_inference"},
}
KERNEL_PLACES = (
    "backends/deepseek_v4/ops/",
    "backends/deepseek_v4/rows/",
    "backends/vendor/",
    "specdec/ops/",
)


def imports_of(source: str) -> Iterator[str]:
    """Every module named by an import statement, relative ones with their leading dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def is_below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def violation(path: str, module: str) -> str | None:
    """Why ``path`` (relative, with slashes) may not import ``module``; None if it may."""
    package, top = path.split("/")[0], module.split(".")[0]
    if module.startswith("."):
        return "imports are absolute"
    if package not in PROJECT_ALLOWED:
        return None
    if top in OURS:
        if not any(is_below(module, prefix) for prefix in PROJECT_ALLOWED[package]):
            return f"{package} may not import it"
        if path.startswith("backends/deepseek_v4/") and is_below(module, "backends.nextn"):
            return "the target knows nothing of its drafts"
        return None
    if top in CONFIGURATION:
        return "only experiments configures and logs"
    if top == "triton" and not path.startswith(KERNEL_PLACES):
        return "triton belongs to kernel folders"
    if top in {"flash_mla", "deep_gemm"} and not path.startswith("backends/vendor/"):
        return "vendor kernels are wrapped in backends.vendor"
    return None


def is_foreign(path: str, module: str, standard: frozenset[str]) -> bool:
    """Whether a package depends on a third-party module that it does not declare."""
    package, top = path.split("/")[0], module.split(".")[0]
    known = OUTSIDE_ALLOWED.get(package)
    kernels = {"triton", "flash_mla", "deep_gemm"}
    return known is not None and top not in standard | known | OURS | kernels


def project_files() -> list[Path]:
    return [path for folder in sorted(OURS) for path in sorted((ROOT / folder).rglob("*.py"))]


def test_imports_follow_the_direction_of_the_packages() -> None:
    found = []
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        for module in imports_of(path.read_text(encoding="utf-8")):
            reason = violation(name, module)
            if reason is None and is_foreign(name, module, sys.stdlib_module_names):
                reason = "not a declared dependency of its package"
            if reason is not None:
                found.append(f"{name} imports {module}: {reason}")
    assert found == []


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("specdec/engine.py", "backends.nextn.backend"),
        ("specdec/engine.py", "hydra"),
        ("specdec/metrics.py", "wandb"),
        ("drafters/nextn.py", "backends.nextn"),
        ("drafters/nextn.py", "specdec.engine"),
        ("drafters/nextn.py", "specdec"),
        ("backends/nextn/backend.py", "specdec.engine"),
        ("backends/nextn/backend.py", "specdec.sampling"),
        ("backends/deepseek_v4/model.py", "backends.nextn.model"),
        ("backends/deepseek_v4/model.py", "triton"),
        ("specdec/sampling.py", "triton"),
        ("specdec/engine.py", ".api"),
    ],
)
def test_imports_against_the_direction_are_refused(path: str, module: str) -> None:
    assert violation(path, module) is not None


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("specdec/engine.py", "specdec.scheduler"),
        ("backends/nextn/backend.py", "backends.deepseek_v4.model"),
        ("backends/deepseek_v4/ops/gather/kernel.py", "triton"),
        ("specdec/ops/choose/kernel.py", "triton"),
        ("drafters/nextn.py", "specdec.api"),
        ("experiments/run.py", "hydra"),
        ("tests/drafters/test_nextn.py", "backends.nextn.backend"),
    ],
)
def test_imports_along_the_direction_are_allowed(path: str, module: str) -> None:
    assert violation(path, module) is None


@pytest.mark.parametrize("name", ["specdec", "backends", "drafters", "conf", "experiments"])
def test_package_name_resolves_inside_this_checkout(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).resolve().is_relative_to(ROOT)
