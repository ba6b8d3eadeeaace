"""--workers and the certificates that go with it."""

from __future__ import annotations

from typing import Any, Mapping

import pytest

from flags.errors import UsageError
from flags.resolve import resolve
from flags.workers import Workers, parse_workers

PARALLEL: Mapping[str, Any] = {"optimizer_state": "fresh", "num_active_client": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Workers(local=1)),
        ("3", Workers(local=3)),
        ("a:8000,b.example.org:1", Workers(0, ("a:8000", "b.example.org:1"))),
        ("10.0.0.1:8000, [::1]:9", Workers(0, ("10.0.0.1:8000", "[::1]:9"))),
        ("unix:/run/a b.sock", Workers(0, ("unix:/run/a b.sock",))),
    ],
)
def test_numbers_and_addresses(text: str, expected: Workers) -> None:
    assert parse_workers(text) == expected
    assert expected.number == len(expected.addresses) or expected.local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "65",
        "-1",
        "two",
        "a",
        "a:",
        "a:0",
        "a:65536",
        ":8000",
        "a:1,",
        "a b:1",
        5000 * "1",
    ],
)
def test_anything_else_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError, match="^--workers: found"):
        parse_workers(text)


def test_an_address_given_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match="a:1 twice"):
        parse_workers("a:1,b:1,a:1")


def test_which_addresses_are_across_a_network() -> None:
    found = parse_workers("a:1,localhost:1,127.0.0.1:2,[::1]:3,unix:/x,10.0.0.1:1")
    assert found.across_network == ("a:1", "10.0.0.1:1")


def test_clients_in_turns_need_one_worker() -> None:
    flags = {**PARALLEL, "optimizer_state": "sequential"}
    with pytest.raises(UsageError, match=r"--optimizer_state=fresh or averaged"):
        resolve({**flags, "workers": "2"})
    assert resolve({**flags, "workers": "a:1"}).config.workers == "a:1"


@pytest.mark.parametrize("method", ["fedmatch", "fixmatch", "mixmatch", "sage"])
def test_clients_with_optimizers_of_their_own_may_share_workers(method: str) -> None:
    config = resolve({"method": method, "num_active_client": 3, "workers": "2"}).config
    assert config.optimizer_state == "client"


def test_more_workers_than_clients_are_an_error() -> None:
    assert resolve({**PARALLEL, "workers": "3"}).config.workers == "3"
    for text in ("4", "a:1,b:1,c:1,d:1"):
        with pytest.raises(UsageError, match=r"--workers: found 4.*client=3"):
            resolve({**PARALLEL, "workers": text})


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"worker_ca": "x"}, "--worker_ca: found with --workers=1"),
        ({"workers": "a:1", "worker_cert": "x"}, "--worker_cert.*--worker_ca"),
        (
            {"workers": "a:1", "worker_ca": "x", "worker_cert": "x"},
            "--worker_cert.*--worker_key",
        ),
        (
            {"workers": "a:1", "worker_ca": "x", "worker_key": "x"},
            "--worker_key.*--worker_cert",
        ),
    ],
)
def test_certificates_that_do_not_go_together(flags: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        resolve({**PARALLEL, **flags})
