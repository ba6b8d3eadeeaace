"""What a round costs beside its clients' training.

    python -m benchmarks.overhead [--repeats=5] [flags of main.py]

Runs rounds of ProtoFSSL on CIFAR-10 as main.py does, and tells the seconds of

* a round as a whole, without evaluation;
* drawing: who trains on what, and the helpers;
* messages: a round whose clients get all they need but take no step, so that what is
  left is packing, broadcasting, summing, averaging and unpacking;
* writing: rows, checkpoint and TensorBoard;
* evaluation, apart, on validation and test images.

All but the first and last together should stay under 5 % of the round.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import attr
import numpy as np
from absl import logging

from benchmarks import timing
from fl import environment, wiring
from fl.progress import write_line
from fl.types import ClientData
from flags.errors import UsageError
from flags.parse import HelpWanted, parse

PARTS = ("drawing", "messages", "writing")


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    try:
        options, words = timing.split_numbers(argv, {"repeats": 5})
        for line in report_lines(_measure(options["repeats"], words)):
            write_line(line)
    except HelpWanted as wanted:
        write_line(str(wanted))
    except UsageError as error:
        sys.stderr.write(f"benchmarks.overhead: error: {error}\n")
        return 2
    return 0


def _measure(repeats: int, words: Sequence[str]) -> Dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        config = parse(
            ["--dataset=cifar10", *words, f"--out_dir={folder}", "--exp_name=run"]
        ).config
        data = wiring.load_data(config)
        environment.prepare_tensorflow(config.threads)
        from fl.runtime import Runtime
        from fl.workers import LocalWorker

        with Runtime([LocalWorker(Path(folder) / "worker.log")]):
            method: Any = wiring.make_method(config, data)
            logging.info("two rounds, the second of them measured")
            state = method.run_round(method.initial_state()).state
            tasks = _tasks(config, method, state)
            full = timing.interleaved({"round": tasks.pop("round")}, 1, warm_up=0)
            parts = timing.interleaved(tasks, repeats)
    return timing.medians({**full, **parts})


def _tasks(config: Any, method: Any, state: Any) -> Dict[str, Any]:
    from fl import experiment
    from fl.client_states import StatesInFolder
    from fl.experiment import History
    from fl.run_folder import RunFolder
    from fl.tensorboard import TensorBoardLog

    message = method.message(method.with_helpers(state))
    idle = [without_steps(client) for client in method.clients(state)[1]]
    outcome = method.run_round(state)
    row = experiment.round_record(outcome, 1.0)
    history = History(
        state=outcome.state,
        rounds=(row,),
        clients=tuple(experiment.client_records(outcome)),
    )

    def write() -> None:
        with RunFolder(attr.evolve(config, overwrite=True)) as folder:
            folder.begin()
            states = StatesInFolder(folder.client_states)
            experiment.record(config, method, folder, states, history)
            with TensorBoardLog(folder.tensorboard) as board:
                board.write(row)

    return {
        "round": lambda: method.run_round(state),
        "drawing": lambda: (method.with_helpers(state), method.clients(state)),
        "messages": lambda: method.train(message, idle),
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
        client,
        labeled_x=client.labeled_x[first],
        labeled_y=client.labeled_y[first],
        unlabeled_x=np.concatenate([client.unlabeled_x, client.labeled_x[rest]]),
        unlabeled_y=np.concatenate([client.unlabeled_y, client.labeled_y[rest]]),
        support=client.support[:0],
        query=client.query[:0],
        unlabeled=client.unlabeled[:0],
        unlabeled_drawn=client.unlabeled_drawn[:0],
        unlabeled_active=client.unlabeled_active[:0],
    )


def report_lines(seconds: Mapping[str, float]) -> List[str]:
    """Each part's seconds and its share of a round with its writing."""
    whole = seconds["round"] + seconds["writing"]
    lines = [f"round       {whole:8.2f} s"]
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
