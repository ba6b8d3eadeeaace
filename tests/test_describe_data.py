"""The table and picture of how data is dealt, through the program itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import describe_data


def test_prints_the_table_and_writes_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 clients with 5 labelled and 6 unlabelled images of each class."""
    assert describe_data.main([f"--out_dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = "     0  " + " ".join(["   5"] * 10) + "  (50) | " + " ".join(["   6"] * 10)
    assert lines[1] == row + "  (60)"
    assert lines[11].startswith("   all  " + " ".join(["  50"] * 10))
    assert lines[12] == "held out per class: 30 validation, 30 test"
    assert (tmp_path / "data_digits.png").read_bytes()[:4] == b"\x89PNG"


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe_data.main(["--num_client=1000"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "--num_client" in errors
