"""Reading runs: what counts as a cell's own experiment, and which runs share a mean."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable, List, Mapping

import pytest
from fake_runs import (
    QUICK,
    QUICK_FACTOR,
    edit_json,
    entry,
    rounds,
    write_budget,
    write_quick,
    write_run,
)

from experiments import outcomes
from experiments.budgets import budget_for
from experiments.jobs import Job, prepare
from experiments.outcomes import Account, Line
from experiments.results import Fault, Run, read_runs, strays
from experiments.suites import SUITES
from fl.records import RoundRecord
from fl.run_folder import RunFiles
from flags.config import declarations

ENTRY = entry("main", "cifar10_iid/protofssl_fedavg")
CELL = ENTRY.cell
PATH = f"{CELL.path}/seed_1000"


def read_one(results: Path) -> Run:
    runs, faults = read_runs([results], CELL)
    assert faults == []
    assert len(runs) == 1
    return runs[0]


def set_config(files: RunFiles, **changed: Any) -> None:
    config = json.loads(files.config_file.read_text())["config"]
    edit_json(files.config_file, config={**config, **changed})


def test_the_figure_is_test_accuracy_at_the_first_best_validation_round(
    tmp_path: Path,
) -> None:
    """Neither the best test accuracy nor the last, nor a later round as good."""
    rows = rounds([], 296) + [
        RoundRecord(297, val_acc=0.6, test_acc=0.7),
        RoundRecord(298, val_acc=0.65, test_acc=0.625),
        RoundRecord(299, val_acc=0.65, test_acc=0.8),
        RoundRecord(300, val_acc=0.5, test_acc=0.9),
    ]
    write_run(tmp_path, CELL, 1000, rows)
    run = read_one(tmp_path)
    assert (run.path, run.seed, run.source) == (PATH, 1000, tmp_path.name)
    assert (run.test_acc, run.val_acc) == (62.5, 65.0)
    assert run.summary["best_round"] == 298
    assert run.summary["total_seconds"] == 592.0
    assert (run.budget, run.is_partial, run.is_comparable) == ("full", False, True)
    assert run.environment.commit.startswith("0123456789ab")
    assert run.environment.versions == "Python 3.11.7, tensorflow 2.14.1, numpy 1.25.2"


def test_a_run_with_fewer_rounds_is_partial(tmp_path: Path) -> None:
    write_run(tmp_path, CELL, 1000, rounds([0.3, 0.4], 120))
    run = read_one(tmp_path)
    assert (run.rounds, run.num_round, run.test_acc) == (120, 300, 40.0)
    assert run.is_partial
    assert not run.is_comparable
    assert run.share == pytest.approx(0.4)


def test_a_run_without_a_round_has_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, CELL, 1000, [])
    run = read_one(tmp_path)
    assert (run.rounds, run.test_acc, run.share) == (0, None, 0.0)


@pytest.mark.parametrize(
    "name",
    [
        field.name
        for field in declarations()
        if field.metadata["describes_run"]
        and field.name not in ("seed", "exp_name", "data_dir", "num_round")
    ],
)
def test_any_flag_that_describes_a_run_makes_it_another(
    tmp_path: Path, name: str
) -> None:
    files = write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    set_config(files, **{name: "something else"})
    run = read_one(tmp_path)
    assert run.budget == "other"
    assert [difference.flag for difference in run.differences] == [name]
    assert not run.is_comparable


@pytest.mark.parametrize(
    "flags", [{"threads": 2}, {"keep_checkpoints": 7}, {"resume": True}]
)
def test_flags_that_do_not_describe_a_run_change_nothing(
    tmp_path: Path, flags: Mapping[str, Any]
) -> None:
    set_config(write_run(tmp_path, CELL, 1000, rounds([0.5], 300)), **flags)
    run = read_one(tmp_path)
    assert run.is_comparable
    assert not run.own_data


def test_data_from_elsewhere_is_told(tmp_path: Path) -> None:
    files = write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    set_config(files, data_dir="/some/where")
    run = read_one(tmp_path)
    assert run.is_comparable
    assert run.own_data


def test_a_truth_value_is_no_number(tmp_path: Path) -> None:
    set_config(write_run(tmp_path, CELL, 1000, rounds([0.5], 300)), non_iid=0)
    assert str(read_one(tmp_path).differences[0]) == "non_iid 0 instead of false"


def test_a_flag_younger_than_the_run_counts_with_its_default(tmp_path: Path) -> None:
    """`conv_bias` is at its default in the cell, `local_episode` of E = 1 is not."""
    files = write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    config = json.loads(files.config_file.read_text())["config"]
    del config["conv_bias"]
    edit_json(files.config_file, config=config)
    assert read_one(tmp_path).budget == "full"
    other = entry("local_epochs", "m5/protofssl_e1").cell
    files = write_run(tmp_path, other, 1000, rounds([0.5], 300))
    config = json.loads(files.config_file.read_text())["config"]
    del config["local_episode"]
    edit_json(files.config_file, config=config)
    (run,), _ = read_runs([tmp_path], other)
    assert str(run.differences[0]) == "local_episode 10 instead of 1"


def test_a_flag_unknown_here_makes_a_run_another(tmp_path: Path) -> None:
    set_config(write_run(tmp_path, CELL, 1000, rounds([0.5], 300)), warp=9)
    assert str(read_one(tmp_path).differences[0]) == "warp 9 instead of none"


def test_quick_is_told_with_its_share(tmp_path: Path) -> None:
    write_quick(tmp_path, CELL, 1000, rounds([0.3], 30))
    run = read_one(tmp_path)
    assert (run.budget, run.factor, run.is_partial) == ("quick", QUICK_FACTOR, False)
    assert not run.is_comparable
    told = "; ".join(map(str, run.differences))
    assert told == "num_round 30 instead of 300; local_episode 2 instead of 10"


def test_what_the_suite_runner_writes_is_understood(tmp_path: Path) -> None:
    """Its quick budget also lowers the number of helpers, by way of the clients."""
    budget = budget_for(CELL, "quick")
    prepare(Job(CELL, 1000, budget, tmp_path))
    write_run(
        tmp_path, CELL, 1000, rounds([0.3], budget.flags["num_round"]), budget.flags
    )
    run = read_one(tmp_path)
    assert run.budget == "quick"
    assert run.factor == budget.factor
    assert "helper_cnt" in {difference.flag for difference in run.differences}


def test_a_budget_is_not_believed_over_the_configuration(tmp_path: Path) -> None:
    """A run that is not what its budget makes of the cell has other settings."""
    write_budget(tmp_path, CELL, 1000, budget="full", factor=1.0, flags={})
    write_run(tmp_path, CELL, 1000, rounds([0.3], 30), QUICK)
    write_budget(tmp_path, CELL, 1001)
    write_run(tmp_path, CELL, 1001, rounds([0.3], 30), {**QUICK, "opt_lr": 0.1})
    write_budget(tmp_path, CELL, 1002, flags={"no_such_flag": "1"})
    write_run(tmp_path, CELL, 1002, rounds([0.3], 30), QUICK)
    write_run(tmp_path, CELL, 1003, rounds([0.3], 30), QUICK)  # No budget at all.
    write_budget(tmp_path, CELL, 1004, budget="full")
    write_run(tmp_path, CELL, 1004, rounds([0.3], 30), QUICK)
    runs, faults = read_runs([tmp_path], CELL)
    assert faults == []
    assert [run.budget for run in runs] == ["other"] * 5
    assert {run.share for run in runs} == {0.0}


def test_a_full_run_needs_no_budget_and_heeds_none(tmp_path: Path) -> None:
    write_budget(tmp_path, CELL, 1000)
    write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    assert read_one(tmp_path).is_comparable


def test_columns_go_by_their_names(tmp_path: Path) -> None:
    """A file from before a column was, or from after, reads all the same."""
    files = write_run(tmp_path, CELL, 1000, None)
    lines = ["test_acc,later,val_acc,round"]
    lines += [f"0.25,x,0.5,{number}" for number in range(1, 4)]
    files.metrics_file.write_text("\n".join(lines) + "\n")
    run = read_one(tmp_path)
    assert (run.rounds, run.test_acc, run.val_acc) == (3, 25.0, 50.0)
    assert run.summary["total_seconds"] is None


def test_values_that_are_not_finite_do_no_harm(tmp_path: Path) -> None:
    nan = math.nan
    rows = [
        RoundRecord(1, train_loss=nan, val_acc=nan, test_acc=0.9, seconds=nan),
        RoundRecord(2, val_acc=0.5, test_acc=0.4, seconds=math.inf),
        RoundRecord(3, val_acc=None, test_acc=0.8, seconds=-math.inf),
        RoundRecord(4, val_acc=0.4, test_acc=nan, seconds=1.5),
    ]
    write_run(tmp_path, CELL, 1000, rows)
    run = read_one(tmp_path)
    assert (run.test_acc, run.summary["best_round"]) == (40.0, 2)
    assert run.summary["total_seconds"] == 1.5


def test_a_best_round_without_a_test_figure_gives_none(tmp_path: Path) -> None:
    row = RoundRecord(1, val_acc=0.5, test_acc=math.nan)
    write_run(tmp_path, CELL, 1000, [row])
    assert read_one(tmp_path).test_acc is None


def _cut(files: RunFiles) -> None:
    text = files.metrics_file.read_text()
    files.metrics_file.write_text(text[: len(text) - 3])


def _replace(name: str, content: bytes) -> Callable[[RunFiles], None]:
    return lambda files: (files.path / name).write_bytes(content) and None


def _metrics(*lines: str) -> Callable[[RunFiles], None]:
    text = "\n".join(["round,val_acc,test_acc,bytes_up", *lines, ""])
    return _replace("metrics.csv", text.encode())


DAMAGE = {
    "metrics.csv: cut off, its last line has no end": _cut,
    "metrics.csv: missing": lambda files: files.metrics_file.unlink(),
    "metrics.csv: damaged, no text": _replace("metrics.csv", b"\xff\xfe\n"),
    "metrics.csv: damaged, no table": _replace("metrics.csv", b'"round\n'),
    "metrics.csv: no column val_acc": _replace("metrics.csv", b"round,test_acc\n"),
    "metrics.csv: no column round": _replace("metrics.csv", b"\n"),
    "metrics.csv line 2: 2 cells for 4 columns": _metrics("1,0.5"),
    "metrics.csv line 2: val_acc is 'half'": _metrics("1,half,0.5,1"),
    "metrics.csv line 2: bytes_up is '1.5'": _metrics("1,0.5,0.5,1.5"),
    "metrics.csv line 3: round 3, 2 is due": _metrics("1,,,", "3,,,"),
    "metrics.csv line 2: round None, 1 is due": _metrics(",0.5,0.5,1"),
    "metrics.csv line 2: test_acc 50.0 is no share": _metrics("1,0.5,50.0,1"),
    "metrics.csv line 2: val_acc -0.1 is no share": _metrics("1,-0.1,0.5,1"),
    "config.json: missing": lambda files: files.config_file.unlink(),
    "config.json: damaged, no JSON": _replace("config.json", b'{"config": {'),
    "config.json: damaged, no object in it": _replace("config.json", b"[]"),
    "config.json: no configuration in it": _replace("config.json", b'{"config": 1}'),
    "config.json: seed 7, folder 1000": lambda files: set_config(files, seed=7),
    "config.json: num_round 0": lambda files: set_config(files, num_round=0),
    "metrics.csv: 300 rounds of 299": lambda files: set_config(files, num_round=299),
    "summary.json: damaged, no JSON": _replace("summary.json", b"half"),
    "summary.json: rounds 299, metrics.csv gives 300": lambda files: edit_json(
        files.summary_file, rounds=299
    ),
    "summary.json: test_acc_at_best 0.99, metrics.csv gives 0.5": lambda files: (
        edit_json(files.summary_file, test_acc_at_best=0.99)
    ),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_run_is_told_and_no_other_suffers(
    tmp_path: Path, reason: str
) -> None:
    DAMAGE[reason](write_run(tmp_path, CELL, 1000, rounds([0.5], 300)))
    write_run(tmp_path, CELL, 1001, rounds([0.5], 300))
    runs, faults = read_runs([tmp_path], CELL)
    assert faults == [Fault(PATH, reason)]
    assert [run.seed for run in runs] == [1001]


@pytest.mark.parametrize("factor", [0.0, 1.5, -1, "much", None, True, math.nan])
def test_a_budget_with_an_impossible_share_is_damaged(
    tmp_path: Path, factor: Any
) -> None:
    write_quick(tmp_path, CELL, 1000, rounds([0.3], 30))
    edit_json(tmp_path / f"{PATH}.budget.json", factor=factor)
    runs, faults = read_runs([tmp_path], CELL)
    assert runs == []
    assert faults[0].reason.startswith("seed_1000.budget.json: factor ")


def test_only_seed_folders_are_runs(tmp_path: Path) -> None:
    files = write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    for name in ("seed_", "seed_01", "seed_1000.old", "backup"):
        (files.path.parent / name).mkdir()
    (files.path.parent / "seed_7").write_text("a file")
    assert read_one(tmp_path).seed == 1000


def test_runs_in_the_place_of_no_cell_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, CELL, 1000, rounds([0.5], 300))
    (tmp_path / "main" / "cifar10_iid" / "renamed" / "seed_1").mkdir(parents=True)
    (tmp_path / "other" / "cifar10_iid" / "renamed" / "seed_1").mkdir(parents=True)
    fault = Fault(
        "main/cifar10_iid/renamed/seed_1",
        "no suite has a cell main/cifar10_iid/renamed",
    )
    assert strays(tmp_path, "main", [CELL.path]) == [fault]
    assert account(tmp_path).faults == (fault,)


def account(*folders: Path) -> Account:
    known = [cell.path for cell in SUITES["main"].cells]
    return outcomes.account(SUITES["main"], folders, known)


def line_of(of: Account) -> Line:
    return next(line for line in of.lines if line.entry == ENTRY)


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    """60, 66 and 69: mean 65; squares 25 + 1 + 16 = 42 over n - 1 = 2, root of 21."""
    for seed, value in ((1000, 0.6), (1001, 0.66), (1002, 0.69)):
        write_run(tmp_path, CELL, seed, rounds([value], 300))
    line = line_of(account(tmp_path))
    assert line.shown is not None
    assert line.shown.mean == pytest.approx(65.0)
    assert line.shown.deviation == pytest.approx(math.sqrt(21.0))
    assert line.shown.seeds == (1000, 1001, 1002)
    assert line.shown.marks == ()
    # The paper prints 67.8.
    assert line.difference == pytest.approx(-2.8)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    write_run(tmp_path, CELL, 1000, rounds([0.6], 300))
    line = line_of(account(tmp_path))
    assert line.shown is not None
    assert line.shown.deviation is None


def test_budgets_and_lengths_never_share_a_mean(tmp_path: Path) -> None:
    """Nine runs of one cell that are eight different things."""
    write_run(tmp_path, CELL, 1, rounds([0.6], 300))
    write_run(tmp_path, CELL, 2, rounds([0.7], 300))
    write_run(tmp_path, CELL, 3, rounds([0.5], 120))
    write_run(tmp_path, CELL, 4, rounds([0.5], 121))
    write_quick(tmp_path, CELL, 5, rounds([0.3], 30))
    write_quick(tmp_path, CELL, 6, rounds([0.2], 10))
    write_run(tmp_path, CELL, 7, rounds([0.9], 300), {"opt_lr": 0.1})
    write_run(tmp_path, CELL, 8, rounds([0.9], 300), {"opt_lr": 0.2})
    write_run(tmp_path, CELL, 9, rounds([0.9], 30), {"num_round": 30})
    results = line_of(account(tmp_path)).results
    # The most training first; what nobody can place comes last.
    seeds = [seed for result in results for seed in result.seeds]
    assert seeds == [1, 2, 4, 3, 5, 6, 7, 8, 9]
    assert len(results) == 8
    assert results[0].mean == pytest.approx(65.0)
    assert [[words for _, words in r.marks] for r in results] == [
        [],
        ["partial 121/300 rounds"],
        ["partial 120/300 rounds"],
        ["quick 1/50"],
        ["quick 1/50", "partial 10/30 rounds"],
        *[["other settings"]] * 3,
    ]


def test_runs_on_data_from_elsewhere_have_a_mean_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, CELL, 1, rounds([0.6], 300))
    files = write_run(tmp_path, CELL, 2, rounds([0.7], 300))
    set_config(files, data_dir="elsewhere")
    assert len(line_of(account(tmp_path)).results) == 2


@pytest.mark.parametrize("quick", [True, False])
def test_no_difference_for_what_is_not_the_papers_experiment(
    tmp_path: Path, quick: bool
) -> None:
    if quick:
        write_quick(tmp_path, CELL, 1, rounds([0.678], 30))
    else:
        write_run(tmp_path, CELL, 1, rounds([0.678], 299))
    line = line_of(account(tmp_path))
    assert line.shown is not None
    assert line.shown.mean == pytest.approx(67.8)
    assert line.difference is None


def test_no_difference_from_a_value_printed_for_another_setting(tmp_path: Path) -> None:
    """FedRGD's: the paper quotes it, and did not run it."""
    fedrgd = entry("main", "cifar10_iid/fedrgd")
    write_run(tmp_path, fedrgd.cell, 1, rounds([0.7], 300))
    line = next(line for line in account(tmp_path).lines if line.entry == fedrgd)
    assert line.shown is not None
    assert line.shown.is_comparable
    assert line.difference is None


def test_a_run_without_a_figure_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    """It would be a mean over those that went well."""
    write_run(tmp_path, CELL, 1, rounds([0.6], 300))
    write_run(tmp_path, CELL, 2, rounds([math.nan], 300))
    line = line_of(account(tmp_path))
    assert line.shown is not None
    assert (line.shown.mean, line.shown.seeds) == (60.0, (1,))
    assert line.shown.marks == (("partial", "1 of 2 runs without a figure"),)
    assert line.difference is None


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """The folder named first counts, and a quick run does not repeat a full one."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_run(first, CELL, 1, rounds([0.6], 300))
    write_run(second, CELL, 1, rounds([0.8], 300))
    write_run(second, CELL, 2, rounds([0.7], 300))
    third = tmp_path / "third"
    write_quick(third, CELL, 1, rounds([0.4], 30))
    whole = account(first, second, third)
    line = line_of(whole)
    assert line.shown is not None
    assert line.shown.mean == pytest.approx(65.0)
    assert [run.source for run in whole.repeats] == ["second"]
    assert [result.mean for result in line.results[1:]] == [40.0]
    shown = line_of(account(second, first)).shown
    assert shown is not None
    assert shown.mean == pytest.approx(75.0)


def test_a_cell_in_two_columns_is_one_result(tmp_path: Path) -> None:
    """FedAvg has no unlabelled data: i.i.d. and non-i.i.d. are one training."""
    cell = entry("main", "cifar10_iid/fedavg").cell
    write_run(tmp_path, cell, 1, rounds([0.6], 300))
    whole = account(tmp_path)
    shown: List[Line] = [line for line in whole.lines if line.shown]
    assert [line.group for line in shown] == ["cifar10_iid", "cifar10_noniid"]
    assert len(whole.results) == 1
    assert len(whole.runs) == 1


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.02, "1/50"), (0.0199, "1/50"), (0.1, "1/10"), (0.3, "1/3.3"), (1.0, "1/1")],
)
def test_a_share_is_told_as_a_fraction(share: float, told: str) -> None:
    assert outcomes.fraction(share) == told
