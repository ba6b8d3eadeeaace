"""What all benchmarks share as programs: their flags, their workers, their manners."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Sequence,
    Tuple,
)

import attr
import numpy as np

from fl import environment, wiring
from fl.progress import write_line
from fl.types import ClientData, Prototypes
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.parse import HelpWanted, parse

# (a benchmark's own numbers, the flags of main.py) -> lines of the result.
Measure = Callable[[Mapping[str, int], Sequence[str]], Iterable[str]]

EXIT_USAGE = 2


def run(
    name: str, argv: Sequence[str], numbers: Mapping[str, int], measure: Measure
) -> int:
    """Runs a benchmark; returns its exit code.

    Args:
        name: of its module.
        argv: the command line without the program.
        numbers: its own flags, whole numbers, with their defaults.
        measure: what it does.
    """
    environment.set_up_logging()
    try:
        options, words = split_numbers(argv, numbers)
        for line in measure(options, words):
            write_line(line)
    except HelpWanted as wanted:
        write_line(str(wanted))
    except UsageError as error:
        sys.stderr.write(f"benchmarks.{name}: error: {error}\n")
        return EXIT_USAGE
    return 0


def split_numbers(
    argv: Sequence[str], defaults: Mapping[str, int]
) -> Tuple[Dict[str, int], List[str]]:
    """A benchmark's own flags, whole numbers of at least 1, and all other words.

    Raises:
        UsageError: for a value that is no such number.
    """
    numbers, words = dict(defaults), []
    for word in argv:
        name, _, value = word.partition("=")
        if name[2:] not in defaults or not name.startswith("--"):
            words.append(word)
        elif value.isdecimal() and int(value) > 0:
            numbers[name[2:]] = int(value)
        else:
            raise UsageError(f"{name}: found '{value}', must be at least 1")
    return numbers, words


def split_parts(
    words: Sequence[str], parts: Sequence[str]
) -> Tuple[Sequence[str], List[str]]:
    """The parts of a benchmark that are named, or all of them; and all other words."""
    named = [word for word in words if word in parts]
    return named or parts, [word for word in words if word not in parts]


def protofssl(words: Sequence[str]) -> ExperimentConfig:
    """The configuration, for benchmarks that look into ProtoFSSL's round.

    Raises:
        UsageError: if it is of another method.
    """
    config = parse(words).config
    if config.method != "protofssl":
        raise UsageError(f"--method: found {config.method}, must be protofssl here")
    return config


def second_round(method: Any, helpers: int = 5) -> Any:
    """ProtoFSSL's state before its second round, when unlabelled data counts.

    Args:
        method: the method.
        helpers: how many clients have left prototypes, which mean nothing here.
    """
    classes, size = method.setup.data.num_classes, method.model.output_shape[-1]
    bank = random_prototypes([helpers, classes, size])
    return attr.evolve(method.initial_state(), round_num=1, bank=bank)


def first_episodes(client: ClientData, count: int) -> ClientData:
    """The client with the first of its episodes alone."""
    return attr.evolve(
        client,
        support=client.support[:count],
        query=client.query[:count],
        unlabeled=client.unlabeled[:count],
        unlabeled_drawn=client.unlabeled_drawn[:count],
        unlabeled_active=client.unlabeled_active[:count],
    )


def random_prototypes(shape: Sequence[int]) -> Prototypes:
    """Prototypes of every class that mean nothing, [H, K, D]."""
    values = np.random.RandomState(0).rand(*shape).astype(np.float32)
    return Prototypes(values=values, present=np.ones(shape[:-1], bool))


@contextlib.contextmanager
def workers(config: ExperimentConfig) -> Iterator[Path]:
    """The workers that the configuration names; gives a folder for the meantime."""
    environment.prepare_tensorflow(config.threads)
    from fl.runtime import Runtime

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Runtime(wiring.make_workers(config, folder / "worker.log")):
            yield folder
