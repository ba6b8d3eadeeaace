"""The plain eager loop (`benchmarks.plain`) in a process of its own.

TensorFlow reads its settings when it is imported, so that two of them take two
processes: one with TensorFlow as it comes, as in the authors' program, and one with the
settings of ours (`fl.environment`). A process trains one client each time it is asked,
for as many episodes as it is told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Sequence

from benchmarks import program
from fl import environment, wiring

ROOT = Path(__file__).parents[1]
OURS = "--ours"
READY = "ready\n"
# What `fl.environment` sets and TensorFlow's speed depends on.
SETTINGS = ("TF_ENABLE_ONEDNN_OPTS",)


class EagerLoop:
    """Such a process; `close` ends it."""

    def __init__(self, words: Sequence[str], as_it_comes: bool):
        """Starts it.

        Args:
            words: flags of main.py.
            as_it_comes: whether TensorFlow keeps its own settings.
        """
        kept = {k: v for k, v in os.environ.items() if k not in SETTINGS}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.eager"),
                *([] if as_it_comes else [OURS]),
                *words,
            ],
            cwd=ROOT,
            env=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait()

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def train(self, episodes: int) -> None:
        """Has it train a client so many episodes, of those that the flags give it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{episodes}\n")
        self._process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            raise RuntimeError("the eager loop has ended")


def main(argv: Sequence[str]) -> int:
    """Trains whenever a number comes in, and says when it is ready for the next."""
    words = [word for word in argv if word != OURS]
    config = program.protofssl(words)
    if OURS in argv:
        environment.prepare_tensorflow(config.threads)
    from benchmarks.plain import PlainClient, resnet8
    from models.specs import pool_sizes

    method: Any = wiring.make_method(config, wiring.load_data(config))
    state = program.second_round(method)
    client = method.clients(state)[1][0]
    shape = method.setup.data.images.shape[1:]
    network = resnet8(shape, pool_sizes(config.model, shape), config.bn_type)
    network.set_weights(list(state.model_weights))
    plain = PlainClient(network, config.opt_lr)
    sys.stdout.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        plain.train(program.first_episodes(client, int(line)), state.bank)
        plain.prototypes(client)
        sys.stdout.write(READY)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
