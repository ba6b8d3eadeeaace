"""The rows of metrics.csv (one per round) and clients.csv (one per round and client).

An absent value is an empty cell. Floats are written with the fewest digits that give
back the same float, so a run that resumes continues from exactly what it had.
"""

from __future__ import annotations

import csv
import io
import math
import operator
from pathlib import Path
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    TypeVar,
    Union,
    get_type_hints,
)

import attr

from fl import files

Number = Union[int, float]


class RecordError(Exception):
    """A file of records that cannot be used; the message is one line for the user."""


def _real(value: Any) -> Optional[float]:
    """Turns any scalar, a NumPy or TensorFlow one too, into a plain float."""
    return None if value is None else float(value)


def _whole(value: Any) -> int:
    """Turns any integer into a plain one; refuses a fraction instead of cutting it."""
    return operator.index(value)


def _optional_whole(value: Any) -> Optional[int]:
    return None if value is None else _whole(value)


@attr.frozen
class RoundRecord:
    """A round: a row of metrics.csv.

    Attributes:
        round: The round, numbered from 1.
        train_acc: Accuracy on the query images, mean over the active clients.
        train_loss: The whole objective, mean over the active clients.
        unlabeled_loss: Its unlabelled term.
        pseudo_label_acc: How often the pseudo-label is the true class.
        pseudo_label_confidence: The pseudo-label's greatest probability, on average.
        val_acc: Accuracy of the global model on the validation images.
        val_loss: Its loss there.
        test_acc: Accuracy of the global model on the test images.
        test_loss: Its loss there.
        seconds: How long the round took.
        bytes_down: What the server sent.
        bytes_up: What the clients returned.
        pseudo_label_share: How many of the unlabelled images seen had a pseudo-label
            that counted.
    """

    round: int = attr.field(converter=_whole, validator=attr.validators.ge(1))
    train_acc: Optional[float] = attr.field(default=None, converter=_real)
    train_loss: Optional[float] = attr.field(default=None, converter=_real)
    unlabeled_loss: Optional[float] = attr.field(default=None, converter=_real)
    pseudo_label_acc: Optional[float] = attr.field(default=None, converter=_real)
    pseudo_label_confidence: Optional[float] = attr.field(default=None, converter=_real)
    val_acc: Optional[float] = attr.field(default=None, converter=_real)
    val_loss: Optional[float] = attr.field(default=None, converter=_real)
    test_acc: Optional[float] = attr.field(default=None, converter=_real)
    test_loss: Optional[float] = attr.field(default=None, converter=_real)
    seconds: Optional[float] = attr.field(default=None, converter=_real)
    bytes_down: Optional[int] = attr.field(default=None, converter=_optional_whole)
    bytes_up: Optional[int] = attr.field(default=None, converter=_optional_whole)
    pseudo_label_share: Optional[float] = attr.field(default=None, converter=_real)


@attr.frozen
class ClientRecord:
    """A client in a round: a row of clients.csv.

    Attributes:
        round: The round, numbered from 1.
        client: The client, numbered from 0.
        train_acc: Accuracy on its query images, mean over its episodes.
        train_loss: Its whole objective, mean over its episodes.
        unlabeled_loss: The unlabelled term of that.
        prototype_norm: Norm of all its prototypes together (Frobenius).
        num_examples: How many images it has.
    """

    round: int = attr.field(converter=_whole, validator=attr.validators.ge(1))
    client: int = attr.field(converter=_whole, validator=attr.validators.ge(0))
    train_acc: Optional[float] = attr.field(default=None, converter=_real)
    train_loss: Optional[float] = attr.field(default=None, converter=_real)
    unlabeled_loss: Optional[float] = attr.field(default=None, converter=_real)
    prototype_norm: Optional[float] = attr.field(default=None, converter=_real)
    num_examples: Optional[int] = attr.field(default=None, converter=_optional_whole)


Record = TypeVar("Record", RoundRecord, ClientRecord)


def columns(record_class: Type[Record]) -> List[str]:
    """Lists the columns of a record's file: the names of its fields, in order."""
    return [field.name for field in attr.fields(record_class)]


def write_rows(
    path: files.PathLike,
    rows: Sequence[Record],
    record_class: Optional[Type[Record]] = None,
) -> None:
    """Writes the whole file anew, atomically: a header line, then a line per row.

    Args:
        path: The CSV file.
        rows: What it is to hold.
        record_class: What its rows are; needed only where `rows` may be empty.
    """
    if record_class is None:
        if not rows:
            raise ValueError("record_class must be given to write a file of no rows")
        record_class = type(rows[0])
    names = columns(record_class)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(getattr(row, name)) for name in names])
    files.write_text(path, text.getvalue())


def read_rows(path: files.PathLike, record_class: Type[Record]) -> List[Record]:
    """Reads what `write_rows` wrote.

    Raises:
        RecordError: If the file is missing, cut off or not one of these records.
    """
    path = Path(path)
    header, *lines = _read_cells(path)
    names = columns(record_class)
    if header != names:
        raise RecordError(
            f"{path} begins with {_shown(header)}; {','.join(names)} is expected"
        )
    kinds = get_type_hints(record_class)
    rows = []
    for number, cells in enumerate(lines, start=2):
        where = f"{path} line {number}"
        values = _parse_cells(where, cells, kinds)
        try:
            rows.append(record_class(**values))
        except ValueError as error:
            raise RecordError(f"{where}: {error}") from error
    return rows


def best_round(rows: Sequence[RoundRecord]) -> Optional[RoundRecord]:
    """Finds the first row that has the greatest validation accuracy.

    Returns:
        The row, or None if no row has been evaluated.
    """
    best: Optional[RoundRecord] = None
    greatest = -math.inf
    for row in rows:
        if row.val_acc is not None and row.val_acc > greatest:
            best, greatest = row, row.val_acc
    return best


def summarize(rows: Sequence[RoundRecord]) -> Dict[str, Optional[Number]]:
    """Tells a run's outcome; a value there is none of is None."""
    best = best_round(rows)
    last = rows[-1] if rows else None
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return {
        "best_round": best.round if best else None,
        "best_val_acc": best.val_acc if best else None,
        "test_acc_at_best": best.test_acc if best else None,
        "last_val_acc": last.val_acc if last else None,
        "last_test_acc": last.test_acc if last else None,
        "rounds": len(rows),
        "total_seconds": math.fsum(seconds) if seconds else None,
    }


def truncate(rows: Sequence[Record], last_round: int) -> List[Record]:
    """Returns the rows up to and with `last_round`."""
    return [row for row in rows if row.round <= last_round]


def _cell(value: Optional[Number]) -> str:
    return "" if value is None else repr(value)


def _read_cells(path: Path) -> List[List[str]]:
    """Reads a CSV file's cells; there is at least one line."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} is damaged ({error})") from error
    if not text.endswith("\n"):
        # Without this a number cut in the middle would pass for a shorter one.
        raise RecordError(f"{path} is cut off; its last line has no end")
    return lines


def _parse_cells(
    where: str, cells: List[str], kinds: Mapping[str, Any]
) -> Dict[str, Any]:
    """Turns a line's cells into values, by the types of the record's fields."""
    if len(cells) != len(kinds):
        raise RecordError(f"{where} has {len(cells)} cells; {len(kinds)} are expected")
    return {
        name: _parse_cell(f"{where}: {name}", cell, kind)
        for cell, (name, kind) in zip(cells, kinds.items())
    }


def _parse_cell(where: str, cell: str, kind: Any) -> Any:
    required = kind is int
    if cell == "" and not required:
        return None
    whole = required or kind == Optional[int]
    try:
        return int(cell) if whole else float(cell)
    except ValueError as error:
        expected = "an integer" if whole else "a number"
        hint = "" if required else " or nothing"
        raise RecordError(
            f"{where} is {_shown([cell])}; {expected}{hint} is expected"
        ) from error


def _shown(cells: List[str], width: int = 60) -> str:
    """Quotes what was found, on one line and not at length."""
    text = repr(",".join(cells))
    return text if len(text) <= width else text[:width] + "..."
