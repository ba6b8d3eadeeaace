"""Copies what a report needs of runs, and nothing else, to where it can be checked in.

    python -m experiments.publish [--results=results/quick] [--to=results/published]

Of every finished run of a cell: config.json, metrics.csv, summary.json and the budget
beside it, a few kilobytes in all. Where the run lay and where its data came from are
left out: they are nobody's business; that data was not the usual is said.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import List, Sequence

from experiments.suites import all_cells
from fl import environment, files
from fl.progress import write_line
from fl.run_folder import RunFiles
from flags.arguments import ArgumentParser
from flags.errors import UsageError

OWN_DATA = "a folder of its own"


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    parser = ArgumentParser(
        prog="python -m experiments.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=Path("results/quick"))
    parser.add_argument("--to", type=Path, default=Path("results/published"))
    try:
        options = parser.parse_args(argv)
        published = publish(options.results, options.to)
    except UsageError as error:
        sys.stderr.write(f"publish: error: {error}\n")
        return 2
    for path in published:
        write_line(f"published {path}")
    return 0


def publish(results: Path, target: Path) -> List[str]:
    """Copies all finished runs.

    Args:
        results: a folder of results.
        target: where the copies go; what lies there of the same run is replaced.

    Returns:
        The runs, below both folders.

    Raises:
        UsageError: if there is none, or one that cannot be read.
    """
    found = [
        run
        for cell in all_cells()
        for run in sorted((results / cell.path).glob("seed_*"))
        if run.is_dir() and RunFiles(run).summary_file.exists()
    ]
    if not found:
        raise UsageError(f"--results={results}: found no finished run of a suite")
    for run in found:
        try:
            _copy(run, target / run.relative_to(results))
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{run}: cannot be published ({error!r})") from None
    return [str(run.relative_to(results)) for run in found]


def _copy(run: Path, target: Path) -> None:
    source, copy = RunFiles(run), RunFiles(target)
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads(source.config_file.read_text())
    values = config["config"]
    values.pop("out_dir", None)
    if values.get("data_dir"):
        values["data_dir"] = OWN_DATA
    files.write_json(copy.config_file, config)
    files.write_text(copy.metrics_file, source.metrics_file.read_text())
    files.write_text(copy.summary_file, source.summary_file.read_text())
    budget = run.with_name(f"{run.name}.budget.json")
    if budget.exists():
        files.write_text(target.with_name(budget.name), budget.read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
