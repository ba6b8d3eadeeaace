"""Tests that imports point one way, by reading the code without running it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator, Sequence

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data", "models", "fl", "flags", "experiments", "benchmarks")
LOCAL = {*PACKAGES, "main"}
# These join the parts together; everything else directly in fl is the maths.
JOINTS = ("fl/run_folder.py", "fl/experiment.py", "fl/wiring.py")
TFF_HOMES = {"fl/held.py", "fl/process.py", "fl/runtime.py"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _sources() -> list[Path]:
    found = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return sorted([*found, ROOT / "main.py"])


SOURCES = _sources()
MATHS = [p for p in SOURCES if p.parent == ROOT / "fl" and _name(p) not in JOINTS]


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))


def _imported(path: Path) -> set[str]:
    """Every module a file imports, in functions too, with the names it may mean."""
    found: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in (
            "import_module",
            "__import__",
        ):
            found.update(_texts(node.args))
    return found


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _texts(nodes: Sequence[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _packages(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in _imported(path)}


def _those_of(*names: str) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(ROOT).parts[0] in names]


def test_reader_sees_every_way_to_import(tmp_path: Path) -> None:
    """The checks below are worth as much as what this function finds."""
    file = tmp_path / "a.py"
    file.write_text(
        "import a.b as x\nfrom c import d\nfrom . import e\n"
        "def f():\n    import g\n    importlib.import_module('h.i')\n"
        "    __import__('j')\n    'import k'\n"
    )
    assert _imported(file) == {"a.b", "c", "c.d", ".", "..e", "g", "h.i", "j"}


def test_there_is_code_to_check() -> None:
    names = {_name(path) for path in SOURCES}
    assert {"main.py", "data/partition.py", "flags/parse.py", *TFF_HOMES} <= names
    assert {_name(p) for p in MATHS} >= {"fl/losses.py", "fl/prototypes.py"}


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_imports_are_absolute(path: Path) -> None:
    assert not [module for module in _imported(path) if module.startswith(".")]


@pytest.mark.parametrize("package", ["data", "models"])
def test_data_and_models_import_nothing_local(package: str) -> None:
    for path in _those_of(package):
        assert not _packages(path) & (LOCAL - {package}), _name(path)


@pytest.mark.parametrize("path", MATHS, ids=_name)
def test_maths_knows_neither_data_models_nor_flags(path: Path) -> None:
    forbidden = LOCAL - {"fl"}
    assert not _packages(path) & forbidden


def test_flags_import_no_tensorflow_and_nothing_that_runs() -> None:
    for path in _those_of("flags"):
        assert not _packages(path) & {"tensorflow", "tensorflow_federated", "keras"}
        assert not _packages(path) & {"fl", "main", "experiments", "benchmarks"}


def test_nothing_imports_the_programs_on_top() -> None:
    for path in _those_of("data", "models", "flags", "fl"):
        assert not _packages(path) & {"main", "experiments", "benchmarks"}, _name(path)


def test_tff_is_bound_in_three_files() -> None:
    users = {_name(p) for p in SOURCES if "tensorflow_federated" in _packages(p)}
    assert users <= TFF_HOMES
    assert users


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_nothing_prints(path: Path) -> None:
    calls = [
        node.lineno
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert calls == []
