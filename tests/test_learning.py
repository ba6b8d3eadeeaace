"""Every method learns: a run of the whole program on digits, with its own recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flags.presets import METHODS

ROOT = Path(__file__).resolve().parent.parent
# Rounds of three clients. ProtoFSSL leaves its first plateau between rounds 4 and 8, by
# the seed and by rounding; FedRGD's rate is high for the first few.
ROUNDS = {"protofssl": 12, "fedrgd": 12}
DEFAULT_ROUNDS = 8


@pytest.mark.slow
@pytest.mark.parametrize("method", list(METHODS))
def test_learns_digits(method: str, tmp_path: Path) -> None:
    """Ten classes: chance is 0.1. Few rounds must reach four times that."""
    rounds = ROUNDS.get(method, DEFAULT_ROUNDS)
    words = [f"--method={method}", f"--num_round={rounds}", f"--out_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "main.py", "--exp_name=run", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_acc_at_best"] > 0.4, done.stdout
