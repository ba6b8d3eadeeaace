"""Trains ProtoFSSL and the methods it is compared with; `--help` tells how.

Flags -> configuration -> data -> method -> run. TensorFlow is imported only when all
that can be checked without it has been.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import NoReturn, Sequence

from absl import logging

from fl import environment, signals, wiring
from fl.progress import write_line
from fl.run_folder import FolderLost, RunFolder
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.parse import HelpWanted, parse

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    signals.remember()
    try:
        _answer_or_end(argv)
        return 0
    except UsageError as error:
        return _complain(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return _complain(
            "interrupted; --resume continues a run that had begun", EXIT_INTERRUPTED
        )
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        what = f"{error.filename or 'a file'}: {error.strerror or error}"
        return _complain(
            f"{what}; what was written before is whole, --resume continues",
            EXIT_FAILURE,
        )


def _answer_or_end(argv: Sequence[str]) -> None:
    try:
        _answer(argv)
    except Exception:
        signals.check()  # It may be of an import that a signal cut short.
        raise


def _answer(argv: Sequence[str]) -> None:
    """Does what the command line asks for: a run, a dry run or help."""
    try:
        resolved = parse(argv)
    except HelpWanted as wanted:
        write_line(str(wanted))
        return
    for warning in resolved.warnings:
        logging.warning("%s", warning)
    if resolved.config.dry_run:
        write_line(json.dumps(resolved.config.as_dict(), indent=2))
    else:
        train(resolved.config)


def train(config: ExperimentConfig) -> None:
    """One run, from the data to the summary.

    Raises:
        UsageError: for a user's mistake that only now shows.
        SystemExit: with code 1, after a line on what went wrong in mid-run.
    """
    with RunFolder(config) as folder:
        workers = wiring.make_workers(config, folder.worker_log)
        data = wiring.load_data(config)
        environment.prepare_tensorflow(config.threads)
        from fl import experiment
        from fl.runtime import Runtime, RuntimeFailure

        method = wiring.make_method(config, data)
        signals.check()
        try:
            with Runtime(workers):
                experiment.run(config, method, folder)
        except (RuntimeFailure, FolderLost, experiment.Diverged) as error:
            sys.exit(_complain(str(error), EXIT_FAILURE))


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"main.py: error: {text}\n")
    return code


def _run(argv: Sequence[str]) -> int:
    """`main`, whatever ends it; returns the exit code."""
    try:
        return main(argv)
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:  # Another one, while the first was answered.
        return EXIT_INTERRUPTED
    except Exception:
        traceback.print_exc()
        return EXIT_FAILURE


def _leave(code: int) -> NoReturn:
    """Ends the process without Python's own farewell.

    After an interrupt a thread of TFF's may still build a graph. Python would end it in
    the midst of TensorFlow's code, and with that the process, by an abort.
    """
    for stream in (sys.stdout, sys.stderr):
        # Closed, or on a full disk, of which the user has been told.
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(_run(sys.argv[1:]))
