"""The rounds of a run as TensorBoard scalars.

metrics.csv is the record; this is a view of it. A run that resumes opens the log anew
and writes all its rows again, so that each point stands once.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Dict, Optional, Type

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from fl import files
from fl.records import RoundRecord

TAGS: Dict[str, str] = {
    "train_acc": "train/accuracy",
    "train_loss": "train/loss",
    "unlabeled_loss": "train/unlabeled_loss",
    "pseudo_label_acc": "pseudo_label/accuracy",
    "pseudo_label_confidence": "pseudo_label/confidence",
    "val_acc": "validation/accuracy",
    "val_loss": "validation/loss",
    "test_acc": "test/accuracy",
    "test_loss": "test/loss",
    "seconds": "cost/seconds",
    "bytes_down": "cost/bytes_down",
    "bytes_up": "cost/bytes_up",
    "pseudo_label_share": "pseudo_label/share",
}

_PREFIX = "events.out.tfevents."


class TensorBoardLog:
    """An event file of one scalar per present value, with step = round.

    Usable as a context manager, which closes it.
    """

    def __init__(self, folder: files.PathLike) -> None:
        """Opens a new event file in `folder` and removes those of before.

        Args:
            folder: Where TensorBoard is to look; made if there is none.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob(_PREFIX + "*"):
            earlier.unlink()
        # A plain file instead of tensorboard's own: that one starts a thread and
        # imports TensorFlow for its file system.
        self._file = open(folder / _file_name(), "xb")  # noqa: SIM115
        self._records = RecordWriter(self._file)
        self._write_event(Event(file_version="brain.Event:2"))

    def write(self, row: RoundRecord) -> None:
        """Adds a round's points; they can be read when this returns."""
        present = {name: getattr(row, name) for name in TAGS}
        values = [
            Summary.Value(tag=TAGS[name], simple_value=value)
            for name, value in present.items()
            if value is not None
        ]
        if values:
            self._write_event(Event(step=row.round, summary=Summary(value=values)))

    def close(self) -> None:
        """Closes the event file; closing twice does no harm."""
        self._file.close()

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def _write_event(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()


def _file_name() -> str:
    """Names a file so that TensorBoard, which reads in order, finds it the newest."""
    now = time.time_ns()
    seconds, rest = divmod(now, 10**9)
    return f"{_PREFIX}{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
