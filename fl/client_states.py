"""What clients keep between rounds, one file a client and round.

A client's state (an optimizer, a part of the weights) can be as large as the network,
and there may be many clients, so it does not travel in the server's checkpoints. Each
change is a file of its own, named by the round that made it; the server's state only
says which version each client has. A run that goes back to an earlier checkpoint thus
finds the state of that time, or a clear error, never a later one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping, Protocol, Sequence, Tuple

import numpy as np

from fl import checkpoints

Arrays = Mapping[str, np.ndarray]


class ClientStates(Protocol):
    """Where a method finds what its clients kept."""

    def get(self, client: int, version: int) -> Arrays:
        """What the client kept at the end of round `version`, counted from 1."""

    def put(self, client: int, version: int, arrays: Arrays) -> None:
        """Keeps a new version."""


class StatesInMemory:
    """All versions in memory, for short experiments without a folder."""

    def __init__(self) -> None:
        self._states: Dict[Tuple[int, int], Arrays] = {}

    def get(self, client: int, version: int) -> Arrays:
        """See `ClientStates`."""
        return self._states[client, version]

    def put(self, client: int, version: int, arrays: Arrays) -> None:
        """See `ClientStates`."""
        self._states[client, version] = arrays


class StatesInFolder:
    """Files `client_000007/round_000012.npz`."""

    def __init__(self, folder: Path):
        self._folder = folder

    def get(self, client: int, version: int) -> Arrays:
        """See `ClientStates`.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        path = checkpoints.path_of(self._of(client), version)
        return checkpoints.load(path).arrays

    def put(self, client: int, version: int, arrays: Arrays) -> None:
        """See `ClientStates`."""
        checkpoints.save(self._of(client), version, arrays)

    def forget(self, rounds_read: Sequence[int]) -> None:
        """Removes what was replaced before the last of these rounds, bar what is read.

        Args:
            rounds_read: in order; a client's state at the end of each stays.
        """
        for folder in self._folder.glob("client_*"):
            versions = checkpoints.rounds(folder)
            old = {v for v in versions if v <= rounds_read[-1]}
            read = {max((v for v in old if v <= r), default=0) for r in rounds_read}
            for version in old - read:
                checkpoints.path_of(folder, version).unlink()

    def _of(self, client: int) -> Path:
        return self._folder / f"client_{client:06d}"
