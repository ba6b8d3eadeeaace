"""docs/add-a-method.md, applied to a copy of the project and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "add-a-method.md").read_text()
PARTS = ("main.py", "pyproject.toml", "data", "fl", "flags", "models", "tests")
FILE_BLOCK = re.compile(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", re.M | re.S)
REGISTRY_END = re.compile(r"^}\n", re.M)


def file_blocks() -> Dict[str, str]:
    return dict(FILE_BLOCK.findall(PAGE))


def block(kind: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with what the page adds."""
    folder = tmp_path_factory.mktemp("project")
    for part in PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(
                source, target, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source, target)
    for name, text in file_blocks().items():
        assert not (ROOT / name).exists()
        (folder / name).write_text(text)
    presets = folder / "flags" / "presets.py"
    text = presets.read_text()
    start = text.index("METHODS: Mapping")
    end = REGISTRY_END.search(text, start)
    assert end is not None
    presets.write_text(text[: end.start()] + block("registry") + text[end.start() :])
    return folder


def run_in(folder: Path, words: List[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_page_adds_a_method_and_its_test() -> None:
    assert list(file_blocks()) == [
        "fl/methods/pseudo_label.py",
        "tests/fl/methods/test_pseudo_label.py",
    ]


def test_method_of_the_page_runs(project: Path) -> None:
    words = block("console").split()
    assert words[0] == "python"
    small = ["--num_client=3", "--num_active_client=2", "--local_episode=1"]
    run_in(project, [*words[1:], *small])
    config = json.loads((project / "runs" / "protofssl" / "config.json").read_text())
    assert config["config"]["method"] == "pseudo_label"
    assert config["config"]["unlabeled_weight"] == 0.1
    rows = (project / "runs" / "protofssl" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3


def test_tests_of_the_page_pass(project: Path) -> None:
    said = run_in(project, ["-m", "pytest", "-rp", *list(file_blocks())[1:]])
    assert said.count("PASSED") == 2


def test_code_of_the_page_is_in_the_house_style(project: Path) -> None:
    for name in file_blocks():
        run_in(project, ["-m", "ruff", "check", name])
        run_in(project, ["-m", "ruff", "format", "--check", name])
