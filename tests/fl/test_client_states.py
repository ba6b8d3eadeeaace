"""What clients keep: exact versions, and only as many as a resume may want."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl.checkpoints import CheckpointError
from fl.client_states import StatesInFolder, StatesInMemory


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"000": np.full([2], value, np.float32)}


def test_a_version_is_found_again(tmp_path: Path) -> None:
    for store in (StatesInMemory(), StatesInFolder(tmp_path)):
        store.put(7, 1, arrays(1.0))
        store.put(7, 3, arrays(3.0))
        np.testing.assert_array_equal(store.get(7, 1)["000"], [1.0, 1.0])
        np.testing.assert_array_equal(store.get(7, 3)["000"], [3.0, 3.0])


def test_a_missing_version_is_never_replaced_by_another(tmp_path: Path) -> None:
    store = StatesInFolder(tmp_path)
    store.put(7, 3, arrays(3.0))
    with pytest.raises(CheckpointError, match="round_000002.npz"):
        store.get(7, 2)


def test_a_damaged_version_is_an_error(tmp_path: Path) -> None:
    store = StatesInFolder(tmp_path)
    store.put(7, 3, arrays(3.0))
    path = next(tmp_path.rglob("*.npz"))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="damaged"):
        store.get(7, 3)


def test_forgetting_keeps_what_a_resume_reads(tmp_path: Path) -> None:
    """Resuming after round 4 reads version 3; after round 6 version 5."""
    store = StatesInFolder(tmp_path)
    for version in (1, 3, 5, 6):
        store.put(7, version, arrays(version))
    store.forget([4])
    names = sorted(path.name for path in tmp_path.rglob("*.npz"))
    assert names == ["round_000003.npz", "round_000005.npz", "round_000006.npz"]


def test_forgetting_keeps_the_states_of_every_round_read(tmp_path: Path) -> None:
    """Of round 2: version 1, of round 6: version 5; 8 is newer than both."""
    store = StatesInFolder(tmp_path)
    for version in (1, 3, 4, 5, 8):
        store.put(7, version, arrays(version))
    store.put(3, 4, arrays(4))
    store.forget([2, 6])
    names = sorted(path.name for path in (tmp_path / "client_000007").iterdir())
    assert names == ["round_000001.npz", "round_000005.npz", "round_000008.npz"]
    assert len(list((tmp_path / "client_000003").iterdir())) == 1
