"""The whole program on handwritten digits, as a user runs it."""

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
from typing import Any, List, Optional, Sequence

import numpy as np
import psutil
import pytest

from data.partition import FederatedData
from experiments import evaluate
from fl import records
from fl.records import RoundRecord
from fl.run_folder import RunFiles
from flags.errors import UsageError

ROOT = Path(__file__).parents[1]
GONE_SECONDS = 5.0
RUN_SECONDS = 240.0
SMALL = [
    "--num_round=3",
    "--local_episode=1",
    "--num_active_client=2",
    "--helper_cnt=2",
    "--num_client=4",
    "--q_unlabel=10",
    "--optimizer_state=fresh",
    "--bn",
]


def start(out_dir: Path, *flags: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "main.py", f"--out_dir={out_dir}", *SMALL, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line began with {beginning}")


def children(process: subprocess.Popen[str]) -> List[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def all_gone(processes: Sequence[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(list(processes), timeout=GONE_SECONDS)
    return not alive


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """A run that nobody disturbs, with what it says checked on the way."""
    out_dir = tmp_path_factory.mktemp("runs")
    process = start(out_dir, "--exp_name=run")
    wait_for_line(process, "round 1/3")
    workers = children(process)
    assert sorted(w.name().split("_")[0] for w in workers) == ["python", "worker"]
    output, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, errors
    assert all_gone(workers)
    assert "Traceback" not in errors
    lines = output.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["2/3", "3/3"]
    assert lines[-1].startswith("done: ")
    return RunFiles(out_dir / "run")


def assert_same_result(first: RunFiles, second: RunFiles) -> None:
    def rows(run: RunFiles) -> Any:
        found = records.read_rows(run.metrics_file, RoundRecord)
        return [
            [getattr(r, c) for c in records.columns(RoundRecord) if c != "seconds"]
            for r in found
        ]

    assert rows(first) == rows(second)
    assert first.clients_file.read_text() == second.clients_file.read_text()
    with np.load(first.weights_file) as left, np.load(second.weights_file) as right:
        for name in left.files:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_run_leaves_its_records(whole: RunFiles) -> None:
    names = {p.name for p in whole.path.iterdir()} - {".lock"}
    assert names == {
        "config.json",
        "metrics.csv",
        "clients.csv",
        "summary.json",
        "curves.png",
        "tensorboard",
        "checkpoints",
        "worker.log",
        "model.npz",
        "model.keras",
    }
    summary = json.loads(whole.summary_file.read_text())
    assert summary["rounds"] == 3
    assert summary["best_round"] in (1, 2, 3)


def test_evaluate_reloads_the_run(whole: RunFiles) -> None:
    """Its accuracy is the one that the last round recorded."""
    result = subprocess.run(
        [sys.executable, "-m", "experiments.evaluate", str(whole.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:10]] == [
        f"class {k}" for k in range(10)
    ]
    last = records.read_rows(whole.metrics_file, RoundRecord)[-1]
    found = re.fullmatch(r"all: accuracy (\S+) of 300", lines[10])
    assert found
    assert float(found[1]) == pytest.approx(last.test_acc, abs=1e-4)
    assert (whole.path / "confusion_test.png").read_bytes()[:4] == b"\x89PNG"
    (whole.path / "confusion_test.png").unlink()


UNREACHABLE = """
import sys
import main
from fl import workers

workers.REACH_SECONDS = 0.5
sys.exit(main.main(sys.argv[1:]))
"""


def test_a_run_stays_when_the_one_to_replace_it_finds_no_worker(
    whole: RunFiles, tmp_path: Path
) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    flags = ["--exp_name=run", "--overwrite", f"--workers=unix:{tmp_path}/nobody"]
    result = subprocess.run(
        [sys.executable, "-c", UNREACHABLE, f"--out_dir={tmp_path}", *SMALL, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 1
    assert "nobody did not answer within" in result.stderr
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "changes",
    [
        {"weights/000": None},
        {"weights/000": np.zeros([3, 3, 1, 5], np.float32)},
        {"prototypes_present": None},
        {"prototypes": np.zeros([1, 10, 7], np.float32)},
    ],
    ids=["missing", "shape", "present", "prototypes"],
)
def test_evaluate_refuses_arrays_that_do_not_fit(
    whole: RunFiles, tmp_path: Path, changes: Any
) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    run = RunFiles(tmp_path / "run")
    with np.load(run.weights_file) as arrays:
        changed = {**arrays, **changes}
    np.savez(run.weights_file, **{k: v for k, v in changed.items() if v is not None})
    with pytest.raises(UsageError, match="model.npz: does not fit the run's config"):
        evaluate.evaluate_run(run.path, "test")


def test_evaluate_refuses_other_data(
    whole: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FederatedData, "digest", lambda self: "other")
    with pytest.raises(UsageError, match="found other data for digits than the run"):
        evaluate.evaluate_run(whole.path, "test")


def test_evaluate_refuses_what_is_no_run(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "experiments.evaluate", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "config.json" in result.stderr


def test_killed_and_resumed_equals_undisturbed(whole: RunFiles, tmp_path: Path) -> None:
    """kill -9 in the second round: no worker is left, and the run goes on."""
    process = start(tmp_path, "--exp_name=run")
    wait_for_line(process, "round 1/3")
    workers = children(process)
    time.sleep(0.2)
    process.kill()
    process.communicate()
    assert all_gone(workers)
    again = start(tmp_path, "--exp_name=run", "--resume")
    output, errors = again.communicate(timeout=RUN_SECONDS)
    assert again.returncode == 0, errors
    assert "resuming" in errors
    assert "round 1/3" not in output
    assert_same_result(whole, RunFiles(tmp_path / "run"))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_signals_end_the_program_and_its_worker(
    number: int, code: int, tmp_path: Path
) -> None:
    process = start(tmp_path)
    wait_for_line(process, "round 1/3")
    workers = children(process)
    began = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert time.monotonic() - began < GONE_SECONDS
    assert process.returncode == code
    assert all_gone(workers)
    assert "Traceback" not in errors


def test_a_reader_that_leaves_gets_no_traceback(tmp_path: Path) -> None:
    """As in `python main.py | head -1`."""
    process = start(tmp_path)
    wait_for_line(process, "round 1/3")
    workers = children(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(RUN_SECONDS) == 1
    assert all_gone(workers)
    assert "Traceback" not in errors
    assert "Exception" not in errors


def tff_process(process: subprocess.Popen[str]) -> psutil.Process:
    """TFF's program under a run."""
    [found] = [c for c in children(process) if c.name() == "worker_binary"]
    return found


def test_a_worker_that_dies_is_replaced(whole: RunFiles, tmp_path: Path) -> None:
    """Killed in the second round: one warning, and the same result."""
    process = start(tmp_path, "--exp_name=run")
    wait_for_line(process, "round 1/3")
    tff_process(process).kill()
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, errors
    assert errors.count("it is replaced, and its work is repeated") == 1
    assert "ended by signal 9" in errors
    assert_same_result(whole, RunFiles(tmp_path / "run"))


@pytest.mark.slow
def test_workers_that_keep_dying_end_the_run_with_a_clear_error(
    whole: RunFiles, tmp_path: Path
) -> None:
    """Each is killed as soon as it is there; what was done before can be resumed."""
    process = start(tmp_path, "--exp_name=run")
    wait_for_line(process, "round 1/3")
    deadline = time.monotonic() + RUN_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(psutil.Error, ValueError):
            tff_process(process).kill()
        time.sleep(0.05)
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 1
    assert "main.py: error: TFF's worker" in errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    again = start(tmp_path, "--exp_name=run", "--resume")
    _, errors = again.communicate(timeout=RUN_SECONDS)
    assert again.returncode == 0, errors
    assert_same_result(whole, RunFiles(tmp_path / "run"))


@pytest.mark.slow
def test_two_workers_give_the_same_result(whole: RunFiles, tmp_path: Path) -> None:
    """Up to the order in which floats are added."""
    process = start(tmp_path, "--exp_name=run", "--workers=2")
    wait_for_line(process, "round 1/3")
    workers = children(process)
    assert [w.name() for w in workers].count("worker_binary") == 2
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, errors
    assert all_gone(workers)
    weights = (run.weights_file for run in (whole, RunFiles(tmp_path / "run")))
    left, right = (np.load(path) for path in weights)
    for name in left.files:
        np.testing.assert_allclose(left[name], right[name], atol=1e-5, err_msg=name)


def test_a_proxy_in_the_environment_is_no_hindrance(tmp_path: Path) -> None:
    """The worker is on this machine; nothing listens where the proxy should be."""
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "no_grpc_proxy": ""}
    process = start(tmp_path, "--num_round=1", env={**os.environ, **proxy})
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("seconds", [0, 0.3, 0.6])
def test_interrupted_while_starting(tmp_path: Path, seconds: float) -> None:
    """Ctrl-C before the first round: nothing is left, nothing is said but one line.

    Soon after the worker's start, threads of gRPC and of TFF are at work.
    """
    process = start(tmp_path, start_new_session=True)
    deadline = time.monotonic() + RUN_SECONDS
    while not children(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(seconds)
    workers = children(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 130, errors
    assert all_gone(workers)
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("main.py: error: interrupted")


SWALLOWS = """
import signal, sys
import main
from fl import wiring

load = wiring.load_data

def load_data(config):
    try:
        signal.raise_signal(signal.{signal})
    except BaseException:
        {then}
    return load(config)

wiring.load_data = load_data
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("then", ["pass", "raise ImportError('cut short') from None"])
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_a_library_swallows_is_not_lost(
    tmp_path: Path, name: str, code: int, then: str
) -> None:
    script = SWALLOWS.format(signal=name, then=then)
    result = subprocess.run(
        [sys.executable, "-c", script, f"--out_dir={tmp_path}", *SMALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("--help > /dev/full", 1, "No space left on device"),
        ("--dataset=none >&-", 2, "--dataset"),
        ("--dry_run >&-", 0, ""),
    ],
)
def test_output_that_is_full_or_closed(command: str, code: int, said: str) -> None:
    """One line tells what is wrong, and the exit code is that of the mistake."""
    result = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} main.py {command}"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == code
    assert result.stderr.count("\n") == (1 if code else 0)
    assert said in result.stderr


FAREWELL = """
import atexit, runpy, sys
import main
atexit.register(print, "farewell")
{change}
sys.argv = ["main.py", "--help"]
runpy.run_path("main.py", run_name="__main__")
"""
FAILS = """
from flags import parse
def fail(argv):
    raise {error}
parse.parse = fail
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), ("RuntimeError('odd')", 1), ("KeyboardInterrupt", 130)],
)
def test_the_program_leaves_without_pythons_farewell(
    error: Optional[str], code: int
) -> None:
    """However it ends: threads of TFF's may be at work, and Python would abort."""
    change = FAILS.format(error=error) if error else ""
    result = subprocess.run(
        [sys.executable, "-c", FAREWELL.format(change=change)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == code, result.stderr
    assert "farewell" not in result.stdout
    assert ("--dataset" in result.stdout) == (error is None)
    assert ("odd" in result.stderr) == (code == 1)


def test_a_mistake_that_the_method_finds_leaves_nothing_behind(tmp_path: Path) -> None:
    """90 optimizers of 26 MB, which FixMatch's clients keep, are over 2 GB."""
    clients = ["--num_client=90", "--num_active_client=90", "--num_label=1"]
    result = subprocess.run(
        [
            *(sys.executable, "main.py", f"--out_dir={tmp_path / 'new'}"),
            *("--method=fixmatch", "--workers=2", "--num_unlabel=5", *clients),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 2
    complaint = result.stderr.splitlines()[-1]
    assert complaint.startswith("main.py: error: --num_active_client: found 90")
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_default_run_learns_within_four_minutes(tmp_path: Path) -> None:
    """`python main.py` shows that the method works: far above the 10 % of chance."""
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, "main.py", f"--out_dir={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * RUN_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "protofssl" / "summary.json").read_text())
    assert summary["test_acc_at_best"] > 0.8
    assert time.monotonic() - began < RUN_SECONDS
