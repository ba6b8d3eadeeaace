"""The parser of the programs around a run."""

from __future__ import annotations

import pytest

from flags.arguments import ArgumentParser, at_least_one
from flags.errors import UsageError


@pytest.mark.parametrize("value", ["0", "-1", "abc", "1.5", ""])
def test_a_mistake_is_one_line_that_names_the_flag(value: str) -> None:
    parser = ArgumentParser()
    parser.add_argument("--seeds", type=at_least_one)
    assert parser.parse_args(["--seeds=3"]).seeds == 3
    with pytest.raises(UsageError) as caught:
        parser.parse_args([f"--seeds={value}"])
    assert str(caught.value).startswith(f"--seeds: found '{value}', must be a whole")


def test_what_is_missing_is_named() -> None:
    parser = ArgumentParser()
    parser.add_argument("--theirs", required=True)
    with pytest.raises(UsageError, match="--theirs"):
        parser.parse_args([])
