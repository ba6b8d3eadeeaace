"""Memory that only the garbage collector frees."""

from __future__ import annotations

import gc
import weakref
from typing import Iterator

import pytest

from fl import libc
from fl.garbage import Sweep


class _Knot:
    """Refers to itself, so that counting references never frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def no_automatic_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_every_call_frees_what_came_since_the_one_before() -> None:
    with Sweep() as sweep:
        for _ in range(3):
            knot = weakref.ref(_Knot())
            assert knot() is not None
            sweep()
            assert knot() is None


def test_what_is_there_at_first_is_not_looked_at_again_until_the_end() -> None:
    early = _Knot()
    alive = weakref.ref(early)
    with Sweep() as sweep:
        sweep()
        del early
        sweep()
        assert alive() is not None
    gc.collect()
    assert alive() is None
    assert gc.get_freeze_count() == 0


def test_every_call_gives_free_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = []
    monkeypatch.setattr(libc, "release_memory", lambda: given_back.append(True))
    with Sweep() as sweep:
        for count in (1, 2, 3):
            sweep()
            assert len(given_back) == count


def test_an_error_leaves_nothing_hidden_from_the_collector() -> None:
    def fail() -> None:
        with Sweep() as sweep:
            sweep()
            assert gc.get_freeze_count() > 0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert gc.get_freeze_count() == 0
