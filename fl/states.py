"""Frozen records of arrays as flat mappings, for checkpoints."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import attr
import numpy as np


class StateError(Exception):
    """Arrays that are not those of the record; the message is one line."""


def to_arrays(record: Any, prefix: str = "") -> Dict[str, np.ndarray]:
    """Flattens a record: `bank/values` is the field `values` of its field `bank`."""
    if attr.has(type(record)):
        children = {f.name: getattr(record, f.name) for f in attr.fields(type(record))}
    elif isinstance(record, tuple):
        children = {f"{i:03d}": value for i, value in enumerate(record)}
    else:
        return {prefix: np.asarray(record)}
    flat: Dict[str, np.ndarray] = {}
    for name, value in children.items():
        flat.update(to_arrays(value, f"{prefix}/{name}" if prefix else name))
    return flat


def from_arrays(like: Any, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Any:
    """The record that `to_arrays` flattened.

    Args:
        like: a record of the same structure, such as a method's initial state. Arrays
            have its types and shapes; where it has a length of 0, any length will do.
        arrays: what `to_arrays` gave.
        prefix: where in the record this is.

    Raises:
        StateError: if an array is missing or of another kind, or if arrays of any
            length in one record differ in it.
    """

    def child(name: str, value: Any) -> Any:
        return from_arrays(value, arrays, f"{prefix}/{name}" if prefix else name)

    if attr.has(type(like)):
        fields = [(f.name, getattr(like, f.name)) for f in attr.fields(type(like))]
        record = {name: child(name, value) for name, value in fields}
        open_ended = [name for name, value in fields if _is_open_ended(value)]
        if len({len(record[name]) for name in open_ended}) > 1:
            raise StateError(f"{' and '.join(open_ended)} in {prefix} differ in length")
        return type(like)(**record)
    if isinstance(like, tuple):
        return tuple(child(f"{i:03d}", value) for i, value in enumerate(like))
    if prefix not in arrays:
        raise StateError(f"{prefix} is missing")
    value = arrays[prefix]
    _check(prefix, value, np.asarray(like))
    return int(value) if isinstance(like, int) else value


def _is_open_ended(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.shape[:1] == (0,)


def _check(name: str, found: np.ndarray, like: np.ndarray) -> None:
    fits = len(found.shape) == len(like.shape) and all(
        wanted in (0, length) for length, wanted in zip(found.shape, like.shape)
    )
    if found.dtype != like.dtype or not fits:
        raise StateError(
            f"{name} is {found.dtype} {list(found.shape)}, must be {like.dtype} "
            f"{list(like.shape)}"
        )
