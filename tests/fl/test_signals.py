"""Signals: raised at once, and again when somebody swallowed them."""

from __future__ import annotations

import signal

import pytest

from fl import signals

pytestmark = pytest.mark.usefixtures("own_signals")


def test_nothing_is_raised_without_a_signal() -> None:
    signals.remember()
    signals.check()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_what_was_swallowed_is_raised_again(
    number: signal.Signals, expected: type[BaseException]
) -> None:
    signals.remember()
    with pytest.raises(expected):
        signal.raise_signal(number)
    with pytest.raises(expected):
        signals.check()
    signals.remember()
    signals.check()


def test_a_request_to_end_counts_more_than_an_interrupt() -> None:
    signals.remember()
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(number)
        assert caught.value.code == 143


def test_ignored_interrupts_stay_ignored() -> None:
    """So a shell has it for what it runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.remember()
    signal.raise_signal(signal.SIGINT)
    signals.check()
