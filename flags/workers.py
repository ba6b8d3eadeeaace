"""What --workers says: so many workers here, or those at certain addresses."""

from __future__ import annotations

import re
from typing import Tuple

import attr

from flags.errors import UsageError

# Beyond it something else was meant; each takes some hundred megabytes.
MOST_LOCAL = 64
MOST_DIGITS = 9
HIGHEST_PORT = 2**16 - 1
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")
_SOCKET = re.compile(r"unix:(?P<path>/.+)")
# Hosts that no network lies between, as with a tunnel that ends here.
_THIS_MACHINE = re.compile(r"unix:.*|localhost:.*|127\..*|\[::1\]:.*")


@attr.frozen
class Workers:
    """Where a run's workers are.

    Attributes:
        local: how many are started here; 0 where there are addresses.
        addresses: of those that run elsewhere.
    """

    local: int
    addresses: Tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """How many there are."""
        return self.local or len(self.addresses)

    @property
    def across_network(self) -> Tuple[str, ...]:
        """The addresses on other machines."""
        return tuple(a for a in self.addresses if not _THIS_MACHINE.fullmatch(a))


def parse_workers(text: str) -> Workers:
    """The value of --workers.

    Raises:
        UsageError: if it is neither a number nor a list of addresses.
    """
    if re.fullmatch(r"\d+", text):
        if len(text) > MOST_DIGITS or not 1 <= int(text) <= MOST_LOCAL:
            raise UsageError(
                f"--workers: found {text}, must be from 1 to {MOST_LOCAL}, or addresses"
            )
        return Workers(local=int(text))
    addresses = tuple(part.strip() for part in text.split(","))
    for address in addresses:
        _check_address(address)
        if addresses.count(address) > 1:
            raise UsageError(f"--workers: found {address} twice, must be one time each")
    return Workers(local=0, addresses=addresses)


def _check_address(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    known = found and 0 < int(found["port"]) <= HIGHEST_PORT
    if not known and not _SOCKET.fullmatch(address):
        raise UsageError(
            f"--workers: found '{address}', must be a number of workers to start here, "
            "or HOST:PORT,HOST:PORT,... of workers that run elsewhere"
        )
