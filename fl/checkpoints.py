"""Checkpoints: one uncompressed .npz file per round, `round_000012.npz`.

A file is a flat mapping from names to arrays that `np.load` reads too. A run resumes
from the newest one that is whole; the zip format's checksums tell which are.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path
from typing import Dict, List, Mapping, Optional

import attr
import numpy as np
from absl import logging

from fl import files

_NAME = re.compile(r"round_(\d{6}|[1-9]\d{6,})\.npz")


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message is one line for the user."""


@attr.frozen(eq=False)
class Checkpoint:
    """What a run had at the end of a round.

    Attributes:
        round_num: The round.
        arrays: The state, by name.
        path: The file it was read from.
    """

    round_num: int
    arrays: Mapping[str, np.ndarray]
    path: Path


def save(
    folder: files.PathLike, round_num: int, arrays: Mapping[str, np.ndarray]
) -> Path:
    """Writes a round's arrays; the file appears when it is whole.

    Args:
        folder: Where the run's checkpoints stand.
        round_num: The round, zero or more.
        arrays: The state, by name. Arrays of Python objects are refused.

    Returns:
        The file written.
    """
    if round_num < 0:
        raise ValueError(f"round_num is {round_num}; it must not be negative")
    path = path_of(folder, round_num)
    with (
        files.atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in arrays.items():
            _write_array(archive, name, array)
    return path


def path_of(folder: files.PathLike, round_num: int) -> Path:
    """Names the file of a round's checkpoint."""
    return Path(folder) / f"round_{round_num:06d}.npz"


def load(path: files.PathLike) -> Checkpoint:
    """Reads one checkpoint and verifies the checksum of every array in it.

    Raises:
        CheckpointError: If the file is missing, damaged or not a checkpoint.
    """
    path = Path(path)
    matched = _NAME.fullmatch(path.name)
    if not matched:
        raise CheckpointError(
            f"{path} is not the name of a checkpoint; those are like round_000012.npz"
        )
    if path.exists() and not path.is_file():  # A pipe would be read for ever.
        raise CheckpointError(f"checkpoint {path} is no regular file")
    try:
        arrays = read_arrays(path)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({error.strerror or error})"
        ) from error
    # A hostile or damaged file can make zip and the npy parser raise anything.
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged ({one_line(error)})"
        ) from error
    return Checkpoint(int(matched[1]), arrays, path)


def latest(folder: files.PathLike) -> Optional[Checkpoint]:
    """Reads the newest whole checkpoint, and warns of each damaged one passed over.

    Returns:
        The checkpoint, or None if the folder has none or does not exist.

    Raises:
        CheckpointError: If there are checkpoints and none is whole.
    """
    paths = _paths(folder)
    for round_num in sorted(paths, reverse=True):
        try:
            return load(paths[round_num])
        except CheckpointError as error:
            logging.warning("%s; looking for the one before it", error)
    if not paths:
        return None
    names = ", ".join(paths[round_num].name for round_num in sorted(paths))
    raise CheckpointError(
        f"no checkpoint in {folder} is whole ({names}); remove them to start from the "
        "first round, or put a whole one there"
    )


def rounds(folder: files.PathLike) -> List[int]:
    """Lists the rounds that have a checkpoint, whole or not, in ascending order."""
    return sorted(_paths(folder))


def prune(folder: files.PathLike, keep: int, best_round: Optional[int]) -> None:
    """Removes all but the newest checkpoints and the best one.

    To be called after `save`, so that the newest whole state is always on the disk.

    Args:
        folder: Where the run's checkpoints stand.
        keep: How many of the newest stay; at least one.
        best_round: The round whose checkpoint stays besides; None if there is none.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
    paths = _paths(folder)
    for round_num in sorted(paths)[:-keep]:
        if round_num != best_round:
            paths[round_num].unlink()


def discard_after(folder: files.PathLike, round_num: int) -> None:
    """Removes the checkpoints of rounds later than `round_num`.

    A run that fell back to an earlier round writes those rounds anew; until it has,
    the files of before must not pass for its own.
    """
    for later, path in _paths(folder).items():
        if later > round_num:
            path.unlink()


def _paths(folder: files.PathLike) -> Dict[int, Path]:
    """Finds the checkpoints of a folder, by round."""
    folder = Path(folder)
    if not folder.is_dir():
        return {}
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(matched[1]): path for matched, path in matches if matched}


def _write_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    # Not np.savez: it would pickle objects, and takes no array named "file".
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: Path) -> Dict[str, np.ndarray]:
    """Reads a file of uncompressed arrays, by whatever name.

    Raises:
        Exception: of any kind, if it is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) != _count_members(path):
            raise ValueError("its list of arrays is not whole")
        return {_array_name(info): _read_array(archive, info) for info in members}


def _count_members(path: Path) -> int:
    """Reads from a zip file's last 22 bytes how many members it has.

    zipfile ignores that number, so a changed length in the list of members could make
    it pass over some of them in silence.
    """
    with open(path, "rb") as file:
        file.seek(-22, os.SEEK_END)
        return int.from_bytes(file.read()[10:12], "little")


def _array_name(info: zipfile.ZipInfo) -> str:
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename} in it is not an array")
    return info.filename[: -len(".npy")]


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} in it is compressed")
    # Reading to the end verifies the checksum before NumPy trusts a single byte.
    content = io.BytesIO(archive.read(info))
    return np.lib.format.read_array(content, allow_pickle=False)


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
