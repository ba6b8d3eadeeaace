"""Runs that are killed, that run out of disk or lose their folder, and then go on.

The program itself is killed, by kill -9, as a user would run it. Each test holds what
comes out in the end against a run that nobody disturbed, file by file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import attr
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl import checkpoints, records
from fl.records import RoundRecord
from fl.run_folder import RunFiles

ROOT = Path(__file__).parents[1]
RUN_SECONDS = 600.0
NUM_ROUND = 6
CHAINS, KILLS = 5, 4
SEED = 20220527

FLAGS = [
    f"--num_round={NUM_ROUND}",
    "--exp_name=run",
    "--eval_every=2",
    "--local_episode=1",
    "--num_active_client=2",
    "--num_client=4",
]
PROTOTYPES = ["--q_unlabel=10", "--optimizer_state=fresh", "--bn"]
# Clients that keep something, so that there are files of that too.
KEEPING = ["--method=fedavg", "--optimizer_state=client"]

# Kills itself before or after a file of a kind is put in place; or lists the kinds.
REPLACING = """
import os, re, signal, sys
kind, when, listing = sys.argv[1:4]
real = os.replace

def replace(source, target, **options):
    path = os.fspath(target).split("/run/", 1)[-1]
    found = re.sub(r"[0-9]+", "N", path)
    if listing:
        with open(listing, "a") as file:
            file.write(found + "\\n")
    if found == kind and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target, **options)
    if found == kind and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace
import main
sys.exit(main.main(sys.argv[4:]))
"""
KINDS = (
    "config.json",
    "clients.csv",
    "metrics.csv",
    "clients/client_N/round_N.npz",
    "checkpoints/round_N.npz",
    "curves.png",
    "model.npz",
    "model.keras",
    "summary.json",
)


@attr.frozen
class Result:
    """What a run leaves, without what differs between any two runs: times."""

    rows: Any
    clients: str
    summary: Dict[str, Any]
    points: Dict[str, Any]
    weights: Dict[str, bytes]
    keras: List[bytes]
    curves: bytes
    states: Dict[str, Dict[str, bytes]]


def result_of(run: RunFiles) -> Result:
    summary = json.loads(run.summary_file.read_text())
    summary.pop("total_seconds")
    events = EventAccumulator(str(run.tensorboard)).Reload()
    model = tf.keras.models.load_model(run.keras_file, compile=False)
    return Result(
        rows=[
            attr.evolve(row, seconds=None)
            for row in records.read_rows(run.metrics_file, RoundRecord)
        ],
        clients=run.clients_file.read_text(),
        summary=summary,
        points={
            tag: [(e.step, e.value) for e in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
            if tag != "cost/seconds"
        },
        weights=raw(np.load(run.weights_file)),
        keras=[weight.tobytes() for weight in model.get_weights()],
        curves=run.curves_file.read_bytes(),
        states={
            str(path.relative_to(run.path)): raw(checkpoints.load(path).arrays)
            for path in sorted(run.path.rglob("round_*.npz"))
        },
    )


def raw(arrays: Any) -> Dict[str, bytes]:
    return {name: arrays[name].tobytes() for name in arrays}


def start(out_dir: Path, flags: Sequence[str], *prefix: str) -> subprocess.Popen[str]:
    command = [sys.executable, *(prefix or ["main.py"])]
    return subprocess.Popen(
        [*command, f"--out_dir={out_dir}", *FLAGS, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(out_dir: Path, flags: Sequence[str], *prefix: str) -> RunFiles:
    process = start(out_dir, flags, *prefix)
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, errors
    return RunFiles(out_dir / "run")


def wait_for_round(process: subprocess.Popen[str], number: int) -> Optional[int]:
    """Reads lines until that round or a later one is done; which it was."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.match(r"round (\d+)/", line)
        if found and int(found[1]) >= number:
            return int(found[1])
    return None


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    return finish(tmp_path_factory.mktemp("whole"), PROTOTYPES)


@pytest.fixture(scope="module")
def undisturbed(undisturbed_run: RunFiles) -> Result:
    return result_of(undisturbed_run)


@pytest.fixture(scope="module")
def pace(undisturbed_run: RunFiles) -> float:
    """Seconds of a round here, without its records, which take about as long."""
    rows = records.read_rows(undisturbed_run.metrics_file, RoundRecord)
    return float(np.median([row.seconds for row in rows]))


@pytest.fixture(scope="module")
def undisturbed_keeping(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same of clients that keep something; every kind of file is known here."""
    folder = tmp_path_factory.mktemp("keeping")
    listing = folder / "kinds"
    run = finish(folder, KEEPING, "-c", REPLACING, "", "", str(listing))
    assert set(listing.read_text().split()) == set(KINDS)
    return result_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("chain", range(CHAINS))
def test_killed_at_any_moment(
    chain: int, undisturbed: Result, pace: float, tmp_path: Path
) -> None:
    """Killed and resumed again and again: moments between the first and last round."""
    rng = np.random.default_rng([SEED, chain])
    rounds = np.sort(rng.choice(np.arange(1, NUM_ROUND), KILLS, replace=False))
    for number, share in zip(rounds, rng.uniform(size=KILLS)):
        resume = ["--resume"] if (tmp_path / "run").exists() else []
        process = start(tmp_path, [*PROTOTYPES, *resume])
        reached = wait_for_round(process, int(number))
        assert reached is not None
        # What is left after the fifth round is that much shorter; after the last,
        # there are only the files of the result to be written.
        time.sleep(share * pace * min(2, NUM_ROUND - reached))
        process.kill()
        process.communicate(timeout=RUN_SECONDS)
        assert process.returncode == -signal.SIGKILL
    run = finish(tmp_path, [*PROTOTYPES, "--resume"])
    assert result_of(run) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_kind_of_file(
    when: str, undisturbed_keeping: Result, tmp_path: Path
) -> None:
    """In one run, one kill after another, as each kind comes to be replaced."""
    for kind in KINDS:
        resume = ["--resume"] if (tmp_path / "run" / "config.json").exists() else []
        program = ("-c", REPLACING, kind, when, "")
        process = start(tmp_path, [*KEEPING, *resume], *program)
        _, errors = process.communicate(timeout=RUN_SECONDS)
        assert process.returncode == -signal.SIGKILL, (kind, errors)
    run = finish(tmp_path, [*KEEPING, "--resume"])
    assert result_of(run) == undisturbed_keeping
    assert not [p for p in run.path.rglob(".*") if p.name != ".lock"]


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size in a folder."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("a disk that can be filled needs root and the program mount")
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be made here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_a_clear_error_and_no_loss(
    undisturbed: Result, tmp_path: Path
) -> None:
    """Two checkpoints fit; the third does not."""
    disk = tmp_path / "disk"
    with small_disk(disk, 60):
        process = start(disk, PROTOTYPES)
        _, errors = process.communicate(timeout=RUN_SECONDS)
        assert process.returncode == 1
        assert "round_000003.npz: No space left on device" in errors
        assert "--resume" in errors
        assert "Traceback" not in errors
        grow = ["mount", "-o", "remount,size=500m", str(disk)]
        subprocess.run(grow, check=True)
        run = finish(disk, [*PROTOTYPES, "--resume"])
        assert result_of(run) == undisturbed


@pytest.mark.slow
def test_a_folder_that_vanishes_is_a_clear_error(tmp_path: Path) -> None:
    """It does not come back in part."""
    process = start(tmp_path, PROTOTYPES)
    assert wait_for_round(process, 1) == 1
    shutil.rmtree(tmp_path / "run")
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 1
    assert "run was removed or replaced while the run was under way" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()
