"""What must be set before TensorFlow is imported, and how our own lines look."""

from __future__ import annotations

import logging as standard_logging
import os
import sys

from absl import flags as absl_flags
from absl import logging

from fl import libc


class _LineFormatter(standard_logging.Formatter):
    """The message alone; a warning or worse says what it is."""

    def format(self, record: standard_logging.LogRecord) -> str:
        message = record.getMessage()
        if record.levelno >= standard_logging.WARNING:
            return f"{record.levelname.lower()}: {message}"
        return message


def set_up_logging() -> None:
    """Our lines on standard error; TensorFlow's only when something is wrong."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Closed by whoever started the program.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    absl_flags.FLAGS.mark_as_parsed()  # absl logs to a provisional place before that.
    logging.use_absl_handler()
    logging.get_absl_handler().setFormatter(_LineFormatter())
    logging.set_verbosity(logging.INFO)
    standard_logging.getLogger("tensorflow").setLevel(standard_logging.ERROR)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def prepare_tensorflow(threads: int = 0) -> None:
    """Sets what must be set before TensorFlow is imported; a user's settings stay.

    TensorFlow leaves oneDNN off on processors without AVX-512, where its gradients of
    convolutions are still up to eight times as fast.

    Args:
        threads: threads for one operation; 0 leaves the choice to TensorFlow.
    """
    libc.keep_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if threads > 0:
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
            os.environ[name] = str(threads)
