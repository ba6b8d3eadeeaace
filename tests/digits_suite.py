"""A suite on handwritten digits that trains in seconds, and a program that runs it.

    python tests/digits_suite.py FOLDER [arguments of experiments.run]

The flagfiles go to FOLDER/experiments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Mapping, Sequence

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments import cells, run, suites, timing  # noqa: E402
from experiments.cells import Cell, Entry, Suite  # noqa: E402
from fl import files  # noqa: E402

TINY = (
    "--dataset=digits",
    "--num_client=4",
    "--num_active_client=2",
    "--num_round=3",
    "--eval_every=1",
    "--method=fedavg",
    "--num_label=2",
    "--local_episode=1",
    "--optimizer_state=fresh",
)
# Ten thousand clients cannot be served from 1,797 images: main.py refuses at once.
IMPOSSIBLE = ("--dataset=digits", "--method=fedavg", "--num_client=10000")


def suite(names: Mapping[str, Sequence[str]]) -> Suite:
    """One row of the cells named, in the group `g`."""
    made = [Cell("tiny", "g", name, name, tuple(f)) for name, f in names.items()]
    entries = [Entry(c, "row", c.name, None, "", f"g/{c.name}") for c in made]
    return Suite("tiny", "Digits", "", tuple(entries))


def write_flagfiles(folder: Path, chosen: Suite) -> None:
    """Puts them where `experiments.run` looks for them from now on."""
    cells.FOLDER = folder / "experiments"
    for cell in chosen.cells:
        files.write_text(cell.flagfile, suites.flagfile_text(cell))


def main(argv: Sequence[str]) -> int:
    """Runs two cells; how long that takes is not measured first."""
    timing.calibrate = lambda networks: dict.fromkeys(networks, 0.001)
    more = (*TINY, "--num_label=3")
    chosen = suite({"first": TINY, "second": more})
    write_flagfiles(Path(argv[0]), chosen)
    return run.main(["tiny", *argv[1:]], {"tiny": chosen})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
