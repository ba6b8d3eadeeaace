"""What is published of runs, and RESULTS.md as made from it."""

from __future__ import annotations

import json
from pathlib import Path

import fake_runs
import pytest

from experiments import publish, report
from flags.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "published"


def test_results_are_made_from_what_is_checked_in(tmp_path: Path) -> None:
    """RESULTS.md and its pictures' names, letter by letter."""
    made = tmp_path / "RESULTS.md"
    code = report.main(
        [
            "main",
            f"--results={PUBLISHED}",
            f"--remarks={PUBLISHED / 'remarks.md'}",
            f"--markdown={made}",
            f"--figures={tmp_path / 'results' / 'published' / 'figures'}",
        ]
    )
    assert code == 0
    assert made.read_text() == (ROOT / "RESULTS.md").read_text()
    for name in (tmp_path / "results" / "published" / "figures").iterdir():
        assert (PUBLISHED / "figures" / name.name).exists()


def test_only_what_a_report_needs_is_published(tmp_path: Path) -> None:
    cell = fake_runs.entry("main", "svhn_iid/fedavg").cell
    run = tmp_path / "from" / cell.path / "seed_1000"
    _write_run(run, {"seed": 1000, "out_dir": "/secret/place", "data_dir": "/mine"})
    (run / "model.npz").write_bytes(b"large")
    target = tmp_path / "to"
    assert publish.publish(tmp_path / "from", target) == [f"{cell.path}/seed_1000"]
    copies = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
    names = ["config.json", "metrics.csv", "summary.json"]
    expected = [Path(cell.path, "seed_1000", name) for name in names]
    assert copies == sorted([*expected, Path(cell.path, "seed_1000.budget.json")])
    config = json.loads((target / expected[0]).read_text())
    assert config["config"] == {"seed": 1000, "data_dir": publish.OWN_DATA}
    assert (target / expected[1]).read_text() == (run / "metrics.csv").read_text()


def _write_run(run: Path, config: dict[str, object]) -> None:
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"config": config}))
    (run / "metrics.csv").write_text("round\n1\n")
    (run / "summary.json").write_text("{}")
    run.with_name(f"{run.name}.budget.json").write_text('{"budget": "quick"}')


def test_unfinished_runs_are_not_published(tmp_path: Path) -> None:
    cell = fake_runs.entry("main", "svhn_iid/fedavg").cell
    run = tmp_path / cell.path / "seed_1000"
    _write_run(run, {})
    (run / "summary.json").unlink()
    with pytest.raises(UsageError, match="found no finished run"):
        publish.publish(tmp_path, tmp_path / "to")
    assert publish.main([f"--results={tmp_path}", f"--to={tmp_path / 'to'}"]) == 2


@pytest.mark.parametrize("damaged", ["config.json", "metrics.csv"])
def test_a_damaged_run_is_one_clear_line(damaged: str, tmp_path: Path) -> None:
    cell = fake_runs.entry("main", "svhn_iid/fedavg").cell
    run = tmp_path / cell.path / "seed_1000"
    _write_run(run, {})
    if damaged == "config.json":
        (run / damaged).write_text("{half")
    else:
        (run / damaged).unlink()
    with pytest.raises(UsageError, match="seed_1000: cannot be published"):
        publish.publish(tmp_path, tmp_path / "to")
