"""The seam lists what it offers, and every public thing in it says what it is."""

import ast
import inspect
from pathlib import Path

from specdec import api, errors

ROOT = Path(__file__).resolve().parents[1]


def test_api_all_is_complete() -> None:
    defined = {
        name
        for name, value in vars(api).items()
        if not name.startswith("_") and inspect.isclass(value) and value.__module__ == api.__name__
    }
    assert defined <= set(api.__all__)


def test_api_all_is_sorted_without_duplicates_and_resolves() -> None:
    assert api.__all__ == sorted(set(api.__all__))
    assert [name for name in api.__all__ if name not in vars(api)] == []


def test_api_classes_have_docstrings() -> None:
    assert [name for name in api.__all__ if name != "LAST_LAYER" and not vars(api)[name].__doc__] == []


def test_errors_all_descend_from_one_base() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert len(classes) > 1
    assert all(issubclass(value, errors.SpecDecError) for value in classes)


def test_specdec_public_functions_have_docstrings() -> None:
    missing = []
    for path in sorted((ROOT / "specdec").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and ast.get_docstring(node) is None:
                missing.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert missing == []
