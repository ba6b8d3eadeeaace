"""Frozen records of arrays as flat mappings, for checkpoints."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import attr
import numpy as np


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
        like: a record of the same structure, such as a method's initial state.
        arrays: what `to_arrays` gave.
        prefix: where in the record this is.

    Raises:
        KeyError: if an array is missing.
    """

    def child(name: str, value: Any) -> Any:
        return from_arrays(value, arrays, f"{prefix}/{name}" if prefix else name)

    if attr.has(type(like)):
        return type(like)(
            **{
                f.name: child(f.name, getattr(like, f.name))
                for f in attr.fields(type(like))
            }
        )
    if isinstance(like, tuple):
        return tuple(child(f"{i:03d}", value) for i, value in enumerate(like))
    value = arrays[prefix]
    return int(value) if isinstance(like, int) else value
