"""Other hosts on this machine: network namespaces, each joined to ours by a cable."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from typing import Iterator, List

import attr
import pytest


@attr.frozen
class Host:
    """A network namespace and the pair of virtual devices that leads there.

    Attributes:
        name: of the namespace, and of our end of the cable.
        near: our address on the cable.
        far: its address.
        network: that of both.
    """

    name: str
    near: str
    far: str
    network: str

    @property
    def prefix(self) -> List[str]:
        """What to put before a command so that it runs there."""
        return ["ip", "netns", "exec", self.name]

    def pull_cable(self) -> None:
        """From now on nothing gets there or back."""
        device = f"{self.name}p"
        subprocess.run([*self.prefix, "ip", "link", "set", device, "down"], check=True)


@contextlib.contextmanager
def host(number: int = 0) -> Iterator[Host]:
    """Makes a host, and removes it; skips the test where the system does not let us.

    Args:
        number: below 60; another one for each host at a time.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("another host needs root and the program ip")
    name = f"pf{secrets.token_hex(3)}"
    network, near, far = (f"10.213.77.{4 * number + i}" for i in range(3))
    made = Host(name, near, far, f"{network}/30")
    # Without a cable nothing for that address may leave by another way.
    fence = ["unreachable", f"{made.network}", "metric", "9999"]
    try:
        for command in (
            ["ip", "route", "add", *fence],
            ["ip", "netns", "add", name],
            ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"],
            ["ip", "link", "set", f"{name}p", "netns", name],
            ["ip", "addr", "add", f"{made.near}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*made.prefix, "ip", "addr", "add", f"{made.far}/30", "dev", f"{name}p"],
            [*made.prefix, "ip", "link", "set", f"{name}p", "up"],
            [*made.prefix, "ip", "link", "set", "lo", "up"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
        yield made
    finally:
        subprocess.run(["ip", "link", "del", name], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "route", "del", *fence], capture_output=True)
