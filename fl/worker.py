"""Runs one of TFF's workers behind a door: `python -m fl.worker --port=8000`.

TFF's own program listens on every interface. This one puts it into a network namespace
(`fl.enclosure`) and lets in only those who come through the address given here. A run
starts its workers by this program too, with a private unix socket for a door.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Optional, Sequence

from fl import enclosure, libc, relay

# Nothing else is in the worker's own network, so any port will do there.
ENCLOSED_PORT = 8000
# One client alone leaves a core idle now and then; a few fill them. With the paper's 5
# (or 10, or 30) active clients a round, none is left to train alone at the end.
CONCURRENT_CLIENTS = 5
EVERYWHERE = "0.0.0.0"
POLL_SECONDS = 0.02
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
SIGNALLED = 128


def main(argv: Sequence[str]) -> int:
    """Runs until the worker ends; returns its exit code."""
    options = _parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGNALLED + signal.SIGTERM))
    try:
        listener = _listen(options)
    except OSError as error:
        return _complain(
            f"{_door(options)} cannot be opened: {error.strerror or error}"
        )
    try:
        return _run(options, listener)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        if options.socket:
            with contextlib.suppress(OSError):
                os.unlink(options.socket)


def worker_binary() -> Path:
    """The worker program inside the installed TFF package, which is not imported."""
    found = importlib.util.find_spec("tensorflow_federated")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("tensorflow_federated is not installed")
    return Path(found.submodule_search_locations[0], "data", "worker_binary")


def exit_code(code: int) -> int:
    """A process's return code as a shell would have it: 137 for a signal 9."""
    return SIGNALLED - code if code < 0 else code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fl.worker",
        description="One of TFF's workers, for `main.py --workers=HOST:PORT,...`. "
        "Whoever reaches it can run what they like here: see the README on TLS.",
        allow_abbrev=False,
    )
    door = parser.add_mutually_exclusive_group(required=True)
    door.add_argument("--port", type=_port, help="TCP port to listen on")
    door.add_argument(
        "--socket", help="unix socket to listen on instead, open to this user alone"
    )
    parser.add_argument(
        "--host",
        default=EVERYWHERE,
        help="address to listen on with --port (default %(default)s, all of this "
        f"machine's; {relay.LOOPBACK} for a proxy or tunnel that ends here)",
    )
    parser.add_argument(
        "--threads",
        type=_count,
        default=0,
        help="threads for an operation; 0 leaves the choice to TensorFlow",
    )
    parser.add_argument(
        "--concurrent_clients",
        type=_count,
        default=0,
        help="how many clients train at the same time, each with memory of its own; "
        f"0 means {CONCURRENT_CLIENTS}",
    )
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--binary", default="", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 2**16:
        raise argparse.ArgumentTypeError(f"found {text}, must be from 1 to 65535")
    return port


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text}, must be at least 0")
    return int(text)


def _door(options: argparse.Namespace) -> str:
    if options.socket:
        return f"unix:{options.socket}"
    return f"{options.host}:{options.port}"


def _listen(options: argparse.Namespace) -> socket.socket:
    if not options.socket:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host, options.port), family=family)
    _remove_stale(options.socket)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(options.socket)
    finally:
        os.umask(mask)
    listener.listen()
    return listener


def _remove_stale(path: str) -> None:
    """Takes away the socket of a worker that is no more."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.stat(path).st_mode):  # Not somebody's file.
                os.unlink(path)
        except OSError:
            return


def _run(options: argparse.Namespace, listener: socket.socket) -> int:
    if not options.parent:
        from fl import environment

        environment.prepare_tensorflow(options.threads)
    closed = enclosure.enter_if_possible()
    if options.parent:
        libc.end_with(options.parent)
    port = ENCLOSED_PORT if closed else _free_port()
    worker = _start(options, port)
    try:
        code = _wait_until_up(worker, port)
        if code is not None:
            return exit_code(code)
        _announce(options, worker.pid, port, closed)
        threading.Thread(target=relay.serve, args=(listener, port), daemon=True).start()
        return exit_code(worker.wait())
    finally:
        worker.kill()


def _start(options: argparse.Namespace, port: int) -> subprocess.Popen[bytes]:
    parent, clients = os.getpid(), options.concurrent_clients or CONCURRENT_CLIENTS
    return subprocess.Popen(
        [
            str(options.binary or worker_binary()),
            f"--port={port}",
            f"--max_concurrent_computation_calls={clients}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=lambda: libc.end_with(parent),
        env={**libc.keeping_memory(), "TF_CPP_MIN_LOG_LEVEL": "1"},
    )


def _wait_until_up(worker: subprocess.Popen[bytes], port: int) -> Optional[int]:
    """Returns None when the worker listens, or its return code if it ended first."""
    while not relay.answers(port):
        if worker.poll() is not None:
            return worker.returncode
        time.sleep(POLL_SECONDS)
    return None


def _announce(options: argparse.Namespace, pid: int, port: int, closed: bool) -> None:
    """Tells a run by a line of JSON, a person by a sentence; warnings come first."""
    if options.port and options.host == EVERYWHERE:
        sys.stderr.write(
            "warning: whoever reaches this port can run computations here; --host or "
            "--socket with a TLS proxy in front keeps others out (see the README)\n"
        )
    if not options.parent and not closed:
        sys.stderr.write(
            "warning: this system allows no network namespace, so the worker also "
            f"answers on every interface at port {port}, to everyone\n"
        )
    if options.parent:
        line = json.dumps({"pid": pid, "closed": closed})
    else:
        line = f"TFF's worker (process {pid}) answers at {_door(options)}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((relay.LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _complain(text: str) -> int:
    sys.stderr.write(f"fl.worker: error: {text}\n")
    return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
