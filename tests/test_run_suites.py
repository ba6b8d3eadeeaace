"""Suites of real runs on digits: what is run, skipped, resumed and told."""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence

import psutil
import pytest
from digits_suite import IMPOSSIBLE, TINY, suite, write_flagfiles

from experiments import cells, jobs, run, timing
from experiments.budgets import budget_for
from experiments.jobs import COMPLETE, DIFFERENT, MISSING, PARTIAL, Job, State
from experiments.suites import SUITES, Suite
from experiments.timing import Estimate
from fl import files, records
from fl.records import RoundRecord
from fl.run_folder import RunFiles
from flags.errors import UsageError

HERE = Path(__file__).parent
WAIT_SECONDS = 600.0
GONE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, own_signals: None) -> None:
    """`run.main` takes over signals, `write_flagfiles` the folder of flagfiles."""
    monkeypatch.setattr(cells, "FOLDER", cells.FOLDER)


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is timed; a pass takes a millisecond."""
    monkeypatch.setattr(timing, "calibrate", lambda ns: dict.fromkeys(ns, 0.001))


def run_suite(folder: Path, chosen: Suite, *words: str) -> int:
    write_flagfiles(folder, chosen)
    argv = ["tiny", f"--out_dir={folder / 'results'}", *words]
    return run.main(argv, {"tiny": chosen})


def make_job(folder: Path, seed: int = 1000, flags: Sequence[str] = TINY) -> Job:
    """A job of the cell `first`, whose flagfile is there."""
    chosen = suite({"first": flags})
    write_flagfiles(folder, chosen)
    (cell,) = chosen.cells
    return Job(cell, seed, budget_for(cell, "full"), folder / "results")


def pretend(job: Job, rounds: int, finished: bool, **other: Any) -> None:
    """Leaves what a run of the job leaves after so many rounds."""
    values = {**job.config.as_dict(), **other}
    files.write_json(job.files.config_file, {"config": values})
    rows = [RoundRecord(round=r, seconds=2.0) for r in range(1, rounds + 1)]
    records.write_rows(job.files.metrics_file, rows, RoundRecord)
    if finished:
        files.write_json(job.files.summary_file, {"test_acc_at_best": 0.5})


def make_task(job: Job, kind: str = MISSING, seconds: Optional[float] = 60.0) -> Any:
    return run.Task(job, State(kind), Estimate(seconds, "timed"))


# A suite, from its first start to its last.


def test_a_suite_goes_on_past_a_failure_and_then_skips_what_is_complete(
    tmp_path: Path, untimed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell cannot run; the one after it still does, and not a second time."""
    chosen = suite({"impossible": IMPOSSIBLE, "first": TINY})
    quick = ("--budget=quick", "--rounds=1")
    assert run_suite(tmp_path, chosen, *quick) == 1
    output = capsys.readouterr().out
    assert "in all 2 runs to do (budget quick)" in output
    assert "1 of 2 runs finished, 1 failed" in output
    assert "failed: tiny/g/impossible seed 1000: exit code 2: main.py: error" in output

    folder = tmp_path / "results" / "tiny" / "g" / "first"
    done = RunFiles(folder / "seed_1000")
    assert json.loads(done.summary_file.read_text())["rounds"] == 1
    assert not done.checkpoints.exists()
    assert "done:" in (folder / "seed_1000.log").read_text()
    assert json.loads((folder / "seed_1000.budget.json").read_text()) == {
        "budget": "quick",
        "factor": pytest.approx(1 / 3 * 1 / 2),
        "flags": {"num_round": "1", "eval_every": "10", "num_active_client": "1"},
        "full": {"num_round": 3, "eval_every": 1, "num_active_client": 2},
    }

    written = done.summary_file.stat().st_mtime_ns
    assert run_suite(tmp_path, chosen, *quick, "--only=first") == 0
    output = capsys.readouterr().out
    assert "in all 0 runs to do" in output
    assert "1 complete" in output
    assert done.summary_file.stat().st_mtime_ns == written


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a suite of two cells in a process of its own; none outlives the test."""
    started: List[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        places = [str(tmp_path), f"--out_dir={tmp_path / 'results'}"]
        process = subprocess.Popen(
            [sys.executable, str(HERE / "digits_suite.py"), *places, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def wait_for_round(process: subprocess.Popen[str], folder: Path, name: str) -> None:
    """Until a run could go on from a round; a suite that ends before has failed."""
    run_folder = folder / "results" / "tiny" / "g" / name / "seed_1000"
    path = run_folder / "checkpoints" / "round_000001.npz"
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    assert path.exists()


def family(process: subprocess.Popen[str]) -> List[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    assert any(child.name() == "worker_binary" for child in found)
    return found


@pytest.mark.slow
def test_killed_suite_takes_its_run_along_and_goes_on(
    tmp_path: Path, start: Start
) -> None:
    """kill -9: neither the run nor its worker is left, and the rest is done later."""
    process = start("--only=first")
    wait_for_round(process, tmp_path, "first")
    children = family(process)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(children, timeout=GONE_SECONDS)[1]

    again = start("--only=first")
    output, _ = again.communicate(timeout=WAIT_SECONDS)
    assert again.returncode == 0, output
    assert "resuming tiny/g/first seed 1000" in output
    assert "1 of 1 runs finished, 0 failed" in output
    log = tmp_path / "results" / "tiny" / "g" / "first" / "seed_1000.log"
    assert "after round" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_interrupted_suite_ends_its_run_and_tells_what_is_done(
    number: int, code: int, tmp_path: Path, start: Start
) -> None:
    process = start()
    wait_for_round(process, tmp_path, "second")
    children = family(process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == code
    assert not psutil.wait_procs(children, timeout=GONE_SECONDS)[1]
    assert "Traceback" not in output
    told = output[output.index("interrupted; ") :]
    assert told.splitlines()[1:] == [
        "  tiny/g/first seed 1000",
        "1 of 2 runs finished, 0 failed",
    ]


# How far a run is.


def test_missing(tmp_path: Path) -> None:
    assert jobs.state(make_job(tmp_path)) == State(MISSING)


def test_partial(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    pretend(job, 2, finished=False)
    assert jobs.state(job) == State(PARTIAL, rounds=2)


def test_complete_wherever_the_data_was(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    pretend(job, 3, finished=True, data_dir="/elsewhere", exp_name="other")
    assert jobs.state(job) == State(COMPLETE, rounds=3)


def test_another_configuration_is_not_touched(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    pretend(job, 3, finished=True, opt_lr=0.5)
    found = jobs.state(job)
    assert (found.kind, found.rounds) == (DIFFERENT, 3)
    assert "--opt_lr was 0.5, now 0.001" in found.reason
    assert "--out_dir" in found.reason


def test_more_rounds_go_on_and_fewer_do_not(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    pretend(job, 2, finished=True, num_round=2)
    # Its checkpoints were removed when it was complete: there is nothing to go on from.
    found = jobs.state(job)
    assert found.kind == DIFFERENT
    assert "checkpoints are gone" in found.reason
    files.write_text(job.files.checkpoints / "round_000002.npz", "")
    assert jobs.state(job) == jobs.State(PARTIAL, 2)
    pretend(job, 5, finished=True, num_round=5)
    assert jobs.state(job).kind == DIFFERENT


def test_more_rounds_are_another_run_where_the_rate_falls_with_them(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path, flags=(*TINY, "--baseline_lr=cosine"))
    pretend(job, 2, finished=True, num_round=2)
    assert jobs.state(job).kind == DIFFERENT


def test_damaged_configuration_is_not_touched(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    files.write_text(job.files.config_file, "{")
    found = jobs.state(job)
    assert found.kind == DIFFERENT
    assert "config.json" in found.reason


def test_a_different_run_counts_as_failed(
    tmp_path: Path, untimed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(make_job(tmp_path), 3, finished=True, opt_lr=0.5)
    assert run_suite(tmp_path, suite({"first": TINY})) == 1
    output = capsys.readouterr().out
    assert "in all 0 runs to do" in output
    assert "0 of 0 runs finished, 1 failed" in output
    assert "--opt_lr was 0.5" in output


# The command of a run.


def test_command_of_a_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, seed=1002)
    budget = budget_for(job.cell, "quick", rounds=1)
    scaled = Job(job.cell, 1002, budget, Path("out"), data_dir="images")
    assert scaled.words == (
        f"--flagfile={tmp_path}/experiments/tiny/g/first.flags",
        "--num_round=1",
        "--eval_every=10",
        "--num_active_client=1",
        "--seed=1002",
        "--out_dir=out/tiny/g/first",
        "--exp_name=seed_1002",
        "--data_dir=images",
    )
    assert scaled.files.path == Path("out/tiny/g/first/seed_1002")
    assert scaled.config.seed == 1002


@pytest.mark.parametrize("text", [None, "--dataset=digits\n"])
def test_flagfile_that_is_not_the_tables_is_refused(
    text: Optional[str], tmp_path: Path
) -> None:
    """Its results would be of another setting than the report says."""
    job = make_job(tmp_path)
    job.cell.flagfile.unlink()
    if text is not None:
        job.cell.flagfile.write_text(text)
    with pytest.raises(UsageError, match="first.flags: .*experiments.suites"):
        jobs.check_flagfile(job.cell)


def test_a_run_that_is_killed_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("round 1/3\n")
    assert jobs._failure(-9, log).startswith("signal 9: killed")
    assert jobs._failure(1, log) == f"exit code 1: round 1/3 (log: {log})"


def test_results_that_cannot_be_written_fail_each_run(
    tmp_path: Path, untimed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tiny").write_text("a file")
    assert run_suite(tmp_path, suite({"first": TINY})) == 1
    assert "--out_dir: " in capsys.readouterr().out


def test_a_file_in_place_of_the_results_is_refused_at_once(
    tmp_path: Path, untimed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("a file")
    assert run_suite(tmp_path, suite({"first": TINY})) == 2
    assert "--out_dir: found a file" in capsys.readouterr().err


# Which cells.


def paths(found: Sequence[Any]) -> List[str]:
    return [f"{chosen.name}/{entry.address}" for chosen, entry in found]


MAIN = [SUITES["main"]]


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("", 55),
        ("svhn_iid", 11),  # A group: FedRGD is not in it.
        ("fedavg", 5),  # A name; fedavg_sl is another.
        ("svhn_iid/fedavg", 1),
        ("main/svhn_iid/fedavg", 2),  # A cell that two columns show.
        ("fedavg_*", 4),
        ("*/fedrgd,stl10", 11),
        ("svhn_iid,svhn_iid/fedavg", 11),
        ("protofssl", 20),  # No name: all that contain it.
        ("svhn", 22),
    ],
)
def test_only(only: str, count: int) -> None:
    assert len(run.select(MAIN, only)) == count


def test_only_finds_a_cell_under_the_address_of_each_column() -> None:
    """FedAvg non-i.i.d. is the training of i.i.d."""
    ((_, entry),) = run.select(MAIN, "cifar10_noniid/fedavg")
    assert entry.cell.path == "main/cifar10_iid/fedavg"
    assert entry.column == "CIFAR-10 non-i.i.d."


def test_only_that_selects_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="--only: found 'nothing', .* of main"):
        run.select(MAIN, "svhn_iid,nothing")


def arguments(**given: Any) -> argparse.Namespace:
    values = {"out_dir": None, "budget": "full", "rounds": None, "seeds": 1}
    return argparse.Namespace(**{**values, "data_dir": "", **given})


def test_all_cells_with_the_first_seed_come_first() -> None:
    entries = run.select(MAIN, "cifar10_noniid/fedavg,cifar10_iid/fedavg,fedrgd")
    made = run.make_jobs(entries, arguments(seeds=2))
    assert [(job.cell.name, job.seed) for job in made] == [
        ("fedavg", 1000),
        ("fedrgd", 1000),
        ("fedrgd", 1000),
        ("fedavg", 1001),
        ("fedrgd", 1001),
        ("fedrgd", 1001),
    ]


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "results/full"),
        ({"budget": "quick"}, "results/quick"),
        ({"budget": "quick", "out_dir": Path("there")}, "there"),
    ],
)
def test_results_of_budgets_lie_apart(given: Mapping[str, Any], folder: str) -> None:
    (job,) = run.make_jobs(run.select(MAIN, "svhn_iid/fedavg"), arguments(**given))
    assert job.results == Path(folder)
    assert job.budget.name == given.get("budget", "full")


def test_results_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where main.py puts them, which the runner starts with the whole path."""
    monkeypatch.setenv("HOME", "/home/me")
    words = ["main", "--out_dir=~/results"]
    assert run._parser({}).parse_args(words).out_dir == Path("/home/me/results")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no suite"),
        (["nonsense"], "'nonsense', must be one of main"),
        (["main", "--only=nonsense"], "--only"),
        (["main", "--rounds=3"], "--budget=quick takes it"),
        (["main", "--seeds=0"], "at least 1"),
        (["main", "--budget=slow"], "quick"),
        (["main", "--no_such_flag"], "--no_such_flag"),
    ],
)
def test_mistakes_get_one_line(
    argv: List[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("run: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_list_names_cells_and_whose_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run.main(["noise", "--only=stl10", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "noise: Table 9, noise on prototypes"
    assert lines[1] == (
        "  stl10/protofssl_bn_stddev_0  = main/stl10/protofssl_bn_fedavg"
    )
    assert lines[2] == "  stl10/protofssl_bn_stddev_0.01"
    assert len(lines) == 8


# How long it will take.


def test_dry_run_tells_and_runs_nothing(
    tmp_path: Path, untimed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = suite({"first": TINY, "second": TINY})
    assert run_suite(tmp_path, chosen, "--dry_run", "--seeds=3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("in all 6 runs to do (budget full), about ")
    assert not (tmp_path / "results").exists()


def test_plan_counts_and_sums(tmp_path: Path) -> None:
    """Two runs of a minute are due, one of them begun; one is complete."""
    job = make_job(tmp_path)
    tasks = [make_task(job, kind) for kind in (MISSING, PARTIAL, COMPLETE)]
    _, line, total = run.plan_lines(tasks)
    expected = ["tiny/g/first", "1", "1", "1", "60", "s", "2", "min", "timed"]
    assert line.split() == expected
    assert total.startswith("in all 2 runs to do (budget full), about 2 min ")
    assert "1 complete" in total


def test_plan_does_not_invent_what_is_not_known(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    tasks = [make_task(job), make_task(job, seconds=None)]
    assert "about unknown" in run.plan_lines(tasks)[-1]


def test_what_runs_recorded_is_preferred_to_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 2 s of another seed; a round costs its passes and two clients'."""
    asked: List[Any] = []

    def calibrate(networks: Sequence[Any]) -> Mapping[Any, float]:
        asked.extend(networks)
        return {}

    monkeypatch.setattr(timing, "calibrate", calibrate)
    first, second = make_job(tmp_path), make_job(tmp_path, seed=1001)
    pretend(first, 3, finished=True)
    _, task = run.make_tasks([first, second])
    assert asked == []
    pace = 2.0 / timing.round_cost(second.config)
    seconds = timing.START_SECONDS + pace * timing.cost_left(second.config)
    assert task.estimate == Estimate(pytest.approx(seconds), "measured")


# The bar.


class Terminal(io.StringIO):
    """Takes what is written and says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_bar_shows_run_round_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", screen)
    job = make_job(tmp_path)
    pretend(job, 2, finished=True)
    with run.RunsProgress([make_task(job), make_task(job)]) as progress:
        progress.begin(make_task(job))
        progress.tell(jobs.last_row(job))
        assert (
            "tiny/g/first seed 1000, round 2/3, about 120 s left" in screen.getvalue()
        )
        progress.end(run.Ended(job, 61.0, None))
        progress.end(run.Ended(job, 1.0, "exit code 1"))
    shown = screen.getvalue() + sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "tiny/g/first seed 1000: done, test acc 0.500 (61 s)" in shown
    assert "tiny/g/first seed 1000: FAILED, exit code 1 (1 s)" in shown
    assert "2/2" in shown


def test_keep_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path)
    monkeypatch.setattr(jobs, "run", lambda job, tell: None)
    for keep in (True, False):
        pretend(job, 3, finished=True)
        for folder in (job.files.checkpoints, job.files.client_states):
            folder.mkdir(exist_ok=True)
        assert run.run_all([make_task(job)], keep_checkpoints=keep) == 0
        assert job.files.checkpoints.exists() == keep
        assert job.files.client_states.exists() == keep
        assert job.files.summary_file.exists()
    del capsys
