"""Tests of what a run shows: lines where there is no terminal, a bar where there is."""

from __future__ import annotations

import io
import sys

import pytest

from fl import progress
from fl.progress import Progress, duration
from fl.records import RoundRecord

PLAIN = RoundRecord(1, train_acc=0.25, train_loss=2.0)
EVALUATED = RoundRecord(
    2, train_acc=0.5, train_loss=1.23456, val_acc=0.4321, test_acc=0.4
)


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (45.0, "45 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (12.4 * 60, "12 min"),
        (119 * 60, "119 min"),
        (2 * 3600, "2.0 h"),
        (3.52 * 3600, "3.5 h"),
        (50 * 3600, "50.0 h"),
    ],
)
def test_durations_are_told_in_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_line_each_round_off_the_terminal(capsys: pytest.CaptureFixture) -> None:
    with Progress(10, []) as shown:
        shown.tell(PLAIN, 4.0)
        assert capsys.readouterr().out == (
            "round 1/10  loss 2.0000  train acc 0.250  4.0 s/round  36 s left\n"
        )
        shown.tell(EVALUATED, 4.0)
    captured = capsys.readouterr()
    assert captured.out == (
        "round 2/10  loss 1.2346  train acc 0.500  val acc 0.432  test acc 0.400  "
        "4.0 s/round  32 s left\n"
    )
    assert captured.err == ""


def test_last_evaluation_is_shown_until_the_next(
    capsys: pytest.CaptureFixture,
) -> None:
    with Progress(10, []) as shown:
        shown.tell(EVALUATED, 1.0)
        shown.tell(RoundRecord(3, train_acc=0.75, train_loss=1.0), 1.0)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "train acc 0.750  val acc 0.432  test acc 0.400" in last


def test_slow_first_round_does_not_set_the_pace(
    capsys: pytest.CaptureFixture,
) -> None:
    """The pace is a median: 100, 2, 2 s give 2, and 4 rounds left take 8 s."""
    with Progress(7, []) as shown:
        for number, seconds in ((1, 100.0), (2, 2.0), (3, 2.0)):
            shown.tell(RoundRecord(number, train_acc=0.0, train_loss=0.0), seconds)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("2.0 s/round  8 s left")


def test_pace_is_of_recent_rounds(capsys: pytest.CaptureFixture) -> None:
    """Twenty rounds of 1 s make 30 before them of 9 s forgotten."""
    with Progress(60, []) as shown:
        for number in range(1, 51):
            row = RoundRecord(number, train_acc=0.0, train_loss=0.0)
            shown.tell(row, 9.0 if number <= 50 - progress.RECENT else 1.0)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("1.0 s/round  10 s left")


def test_a_bar_on_a_terminal_starts_where_the_run_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with Progress(4, [PLAIN]) as shown:
        shown.tell(EVALUATED, 1.0)
    assert out.getvalue() == ""
    assert "1/4" in err.getvalue()
    assert "2/4" in err.getvalue()
    assert "val acc 0.432" in err.getvalue()
    assert "\n" not in err.getvalue().strip()


def test_lines_where_only_one_stream_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Standard output goes into a file, which a bar on the other would leave empty."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2, []) as shown:
        shown.tell(PLAIN, 1.0)
    assert capsys.readouterr().out.startswith("round 1/2")
