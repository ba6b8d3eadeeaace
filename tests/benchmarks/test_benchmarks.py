"""The benchmarks' arithmetic; nothing here measures time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from benchmarks import methods, overhead, program, timing
from benchmarks import round as round_benchmark
from benchmarks.methods import Work
from flags.errors import UsageError

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 600.0


def test_tasks_take_turns_and_the_first_turn_is_not_counted() -> None:
    said: List[str] = []
    tasks = {name: (lambda name=name: said.append(name)) for name in "ab"}
    seconds = timing.interleaved(tasks, repeats=3)
    assert said == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_medians() -> None:
    assert timing.medians({"a": [9.0, 1.0, 2.0]}) == {"a": 2.0}


def test_ratios_are_taken_turn_by_turn() -> None:
    """The second turn is slow for both: the medians' ratio would be 3 / 10."""
    assert timing.ratio([2.0, 30.0, 3.0], [1.0, 10.0, 20.0]) == 2.0


def test_stolen_time_is_a_share_of_the_time_with_work(tmp_path: Path) -> None:
    """Meanwhile 90 ticks of work (user 50, system 30, softirq 10) and 10 stolen."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 20 900 5 0 3 7 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    stolen = timing.Stolen(stat)
    assert stolen.share() == 0
    stat.write_text("cpu  150 0 50 990 9 0 13 17 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert stolen.share() == 0.1


def test_ratios_are_by_step_and_by_image() -> None:
    """FedAvg: 4 steps, 8 images in 2 s; other: 2 steps, 40 images in 5 s."""
    lines = methods.table_lines(
        {"fedavg": 2.0, "other": 5.0}, {"fedavg": Work(4, 8), "other": Work(2, 40)}
    )
    assert lines[2].split() == ["other", "2", "40", "2.500", "5.00", "125.00", "0.50"]


def test_own_numbers_are_taken_out_of_the_words() -> None:
    own = {"repeats": 5, "episodes": 4}
    numbers, words = program.split_numbers(["--seed=1", "--repeats=7"], own)
    assert (numbers, words) == ({"repeats": 7, "episodes": 4}, ["--seed=1"])
    for word in ("--repeats", "--repeats=0", "--repeats=many"):
        with pytest.raises(UsageError, match="^--repeats: found"):
            program.split_numbers([word], own)


def test_parts_are_those_named_or_all() -> None:
    parts = ("flat", "active")
    assert program.split_parts(["--seed=1"], parts) == (parts, ["--seed=1"])
    assert program.split_parts(["active", "--a=b"], parts) == (["active"], ["--a=b"])


def test_in_a_second_round_unlabelled_data_counts(make_small: Any) -> None:
    method = make_small()
    state = method.with_helpers(program.second_round(method, helpers=2))
    assert state.helpers.present.any()
    client = method.clients(state)[1][0]
    assert client.unlabeled_active.all()
    assert len(program.first_episodes(client, 1).unlabeled_active) == 1


def test_report_says_when_the_floor_is_not_to_be_trusted() -> None:
    """Floor: 6 GFLOP in 2 s are 3 GFLOP/s, of 8 GFLOP in 2 s or in 1.9 s."""
    numbers = {"ours": 2.5, "sequential": 2.6, "eager": 4.0, "tuned": 3.0}
    numbers.update(floor=2.0, peak=2.0)
    seconds = {k: [v, 9.0 * v, v] for k, v in numbers.items()}  # One slow turn.
    trusted = round_benchmark.report_lines("bn", seconds, (6e9, 8e9), 0.031)
    assert "1.25 x floor" in trusted[1]
    assert "1.60 x as fast as eager, 1.20 x as fast as tuned" in trusted[6]
    assert "sequential takes 1.04 x ours" in trusted[6]
    assert "3 GFLOP/s, 75 % of the matrix product's 4; 3.1 % of the time" in trusted[7]
    assert len(trusted) == 8
    quicker = {**seconds, "peak": [1.9]}
    doubted = round_benchmark.report_lines("bn", quicker, (6e9, 8e9), 0.0)
    assert "not to be trusted" in doubted[8]


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--fidelity=paper"], "--distance: found euclidean, must be mean_squared"),
        (["--bn_type=sbn"], "--bn_type: found sbn, must be none or bn or gn"),
        (["--model=res18"], "--model: found res18, must be res9"),
    ],
)
def test_what_the_plain_loop_does_not_do_is_refused(
    words: List[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert round_benchmark.main(words) == program.EXIT_USAGE
    assert flag in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("round", ["--bn_type=bn", "--episodes=1"], "sequential takes"),
        ("overhead", [], "together"),
        ("scaling", ["H"], "H = 30"),
        ("methods", [], "fedmatch"),
    ],
)
def test_benchmarks_run(name: str, words: List[str], line: str, tmp_path: Path) -> None:
    """Once, on digits where they take a data set: the figures mean nothing."""
    digits = ["--dataset=digits", "--repeats=1", f"--out_dir={tmp_path}"]
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words, *digits],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    assert line in result.stdout


def test_overhead_is_a_share_of_a_round_with_its_writing() -> None:
    """99 s and 1 s of writing are 100; drawing, messages and writing 4.5 together."""
    seconds = {
        "start": 12.0,
        "round": 99.0,
        "drawing": 0.5,
        "messages": 3.0,
        "writing": 1.0,
        "evaluation": 7.0,
    }
    lines = overhead.report_lines(seconds)
    assert lines[1].split() == ["round", "100.00", "s"]
    assert lines[3].split() == ["messages", "3.00", "s", "3.0", "%"]
    assert lines[5].split()[:5] == ["together", "4.50", "s", "4.5", "%"]
    assert lines[6].startswith("evaluation")


def test_a_client_without_steps_keeps_its_images(make_small: Any) -> None:
    """So that as much is sent; with an image a class, prototypes are still made."""
    method = make_small()
    client = method.clients(method.initial_state())[1][0]
    idle = overhead.without_steps(client)
    total = len(client.labeled_y) + len(client.unlabeled_y)
    assert len(idle.labeled_x) + len(idle.unlabeled_x) == total
    assert sorted(idle.labeled_y) == sorted(set(client.labeled_y))
    assert len(idle.query) == len(idle.unlabeled_active) == 0
