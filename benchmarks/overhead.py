"""What a round costs beside its clients' training.

    python -m benchmarks.overhead [--repeats=5] [flags of main.py]

Runs rounds of ProtoFSSL on CIFAR-10 as main.py does, and tells the seconds of

* the start: from the command to the end of a first round of one client with next to
  nothing to do. Under 20 s wanted;
* a round as a whole, without evaluation;
* drawing: who trains on what, and the helpers;
* messages: a round whose clients get all they need but take no step, so that what is
  left is packing, broadcasting, summing, averaging and unpacking, in memory that was
  returned to the kernel before, as after each round;
* writing: the rows of a run of all rounds, checkpoint, TensorBoard and curves;
* evaluation, apart, on validation and test images.

Drawing, messages and writing together should stay under 5 % of the round.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import attr
import numpy as np
from absl import logging

from benchmarks import program, timing
from fl import wiring
from fl.types import ClientData
from flags.errors import UsageError

PARTS = ("drawing", "messages", "writing")
ROUNDS = 2
POLL_SECONDS = 0.05
MAIN = Path(__file__).parents[1] / "main.py"
SMALL_ROUND = (
    "--num_round=2",  # The last is always evaluated.
    "--num_active_client=1",
    "--helper_cnt=1",
    "--local_episode=1",
    "--num_label=3",
    "--num_unlabel=10",
    "--q_unlabel=1",
)


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    return program.run("overhead", argv, {"repeats": 5}, _measure)


def _measure(numbers: Mapping[str, int], words: Sequence[str]) -> List[str]:
    config = program.protofssl(["--dataset=cifar10", *words, "--exp_name=run"])
    seconds = {"start": [start_seconds(words)]}
    with program.workers(config) as folder:
        config = attr.evolve(config, out_dir=str(folder))
        method: Any = wiring.make_method(config, wiring.load_data(config))
        logging.info("a first round, then %d more", ROUNDS)
        tasks = _tasks(config, method, program.second_round(method))
        whole = {"round": tasks.pop("round")}
        seconds.update(timing.interleaved(whole, ROUNDS, warm_up=0))
        seconds.update(timing.interleaved(tasks, numbers["repeats"]))
    return report_lines(timing.medians(seconds))


def start_seconds(words: Sequence[str]) -> float:
    """From the command to the end of a first round that has next to nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(MAIN), "--dataset=cifar10", *words, *SMALL_ROUND]
        metrics = Path(folder, "start", "metrics.csv")
        began = time.perf_counter()
        run = subprocess.Popen(
            [*command, f"--out_dir={folder}", "--exp_name=start"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not metrics.exists() and run.poll() is None:
                time.sleep(POLL_SECONDS)
            seconds = time.perf_counter() - began
        finally:
            run.terminate()
            run.wait()
        if not metrics.exists():
            raise UsageError(f"main.py ended with code {run.returncode} at its start")
    return seconds


def _tasks(config: Any, method: Any, state: Any) -> Dict[str, Any]:
    from fl import experiment, plots
    from fl.client_states import StatesInFolder
    from fl.experiment import History
    from fl.garbage import Sweep
    from fl.run_folder import RunFolder
    from fl.tensorboard import TensorBoardLog

    message = method.message(method.with_helpers(state))
    idle = [without_steps(client) for client in method.clients(state)[1]]
    outcome = method.run_round(state)
    row = experiment.round_record(outcome, 1.0)
    numbers = range(1, config.num_round + 1)
    history = History(
        state=outcome.state,
        rounds=tuple(attr.evolve(row, round=n) for n in numbers),
        clients=tuple(
            attr.evolve(client, round=n)
            for n in numbers
            for client in experiment.client_records(outcome)
        ),
    )
    sweep = Sweep()

    def write() -> None:
        with RunFolder(attr.evolve(config, overwrite=True)) as folder:
            folder.begin("data")
            states = StatesInFolder(folder.client_states)
            experiment.record(config, method, folder, states, history)
            with TensorBoardLog(folder.tensorboard) as board:
                board.write(row)
            plots.draw_curves(history.rounds, folder.curves_file, config.exp_name)

    def exchange() -> None:
        sweep()
        method.train(message, idle)

    return {
        "round": lambda: method.run_round(state),
        "drawing": lambda: (method.with_helpers(state), method.clients(state)),
        "messages": exchange,
        "writing": write,
        "evaluation": lambda: experiment.with_evaluation(row, method, outcome.state),
    }


def without_steps(client: ClientData) -> ClientData:
    """The client without episodes, and with an image a class to make prototypes of.

    Its other images are sent all the same.
    """
    _, first = np.unique(client.labeled_y, return_index=True)
    rest = np.delete(np.arange(len(client.labeled_y)), first)
    return attr.evolve(
        program.first_episodes(client, 0),
        labeled_x=client.labeled_x[first],
        labeled_y=client.labeled_y[first],
        unlabeled_x=np.concatenate([client.unlabeled_x, client.labeled_x[rest]]),
        unlabeled_y=np.concatenate([client.unlabeled_y, client.labeled_y[rest]]),
    )


def report_lines(seconds: Mapping[str, float]) -> List[str]:
    """Each part's seconds and its share of a round with its writing."""
    whole = seconds["round"] + seconds["writing"]
    lines = [
        f"start       {seconds['start']:8.2f} s (under 20 wanted)",
        f"round       {whole:8.2f} s",
    ]
    for name in PARTS:
        lines.append(
            f"  {name:9} {seconds[name]:8.2f} s  {_share(seconds[name], whole)}"
        )
    together = sum(seconds[name] for name in PARTS)
    lines.append(f"  together  {together:8.2f} s  {_share(together, whole)} (under 5)")
    lines.append(f"evaluation  {seconds['evaluation']:8.2f} s, apart")
    return lines


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
