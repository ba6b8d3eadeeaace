"""Owns TFF's worker process: starts it, connects to it, and ends it.

TFF's runtime is a separate program reached by gRPC. Started by TFF itself it outlives
the Python process that started it and keeps its output open. Here it runs in a session
of its own with its output in a file; the kernel ends it when this process dies,
however it dies, and `Worker.close` ends it on every ordinary way out.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Mapping, Optional, Type

import grpc
import tensorflow_federated as tff

READY_SECONDS = 60.0
POLL_SECONDS = 0.05
MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # The worker is on this machine.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class RuntimeFailure(Exception):
    """The worker process did not start, or is lost; the text is for the user."""


class _NoWorker(tff.framework.SyncContext):
    """Stands where TFF would start a worker of its own."""

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Refuses: computations run inside `with Worker(...)`."""
        raise RuntimeFailure(
            "no worker is running; computations need `fl.runtime.Worker`"
        )


# TFF comes with a context that would start a worker behind our back, and that ends
# with a stray traceback even when never used.
tff.framework.set_default_context(_NoWorker())


class Worker:
    """One worker process and the TFF context that runs computations in it."""

    def __init__(self, log_path: Path):
        """Starts the process and waits until it answers.

        It takes over the settings of `fl.environment` from this process.

        Args:
            log_path: where the worker's own output goes.

        Raises:
            RuntimeFailure: if the worker does not answer in time.
        """
        self.log_path = log_path
        self._port = _free_port()
        self._closing = False
        self._lost = False
        self._process = self._start()
        self._channel = grpc.insecure_channel(
            f"localhost:{self._port}", options=CHANNEL_OPTIONS
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        self._stub = tff.framework.RemoteExecutorGrpcStub(self._channel)
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> Worker:
        tff.framework.set_default_context(self._context())
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
        if self._lost and not isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise RuntimeFailure(
                f"TFF's worker ended with code {self._process.returncode} in the midst "
                f"of the run; its output is in {self.log_path}; --resume continues "
                "from the last complete round"
            ) from None

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def close(self) -> None:
        """Ends the worker; it is gone on return, and nothing is lost with it."""
        self._closing = True
        tff.framework.set_default_context(_NoWorker())
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def tie_to_parent() -> None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It died before the tie was made.
                os._exit(1)

        command = [
            str(worker_binary()),
            f"--port={self._port}",
        ]
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tie_to_parent,
                env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="1"),
            )

    def _watch(self) -> None:
        """Frees a call that waits for a worker which is no more; it would for ever."""
        self._process.wait()
        if not self._closing:
            self._lost = True
            self._channel.close()

    def _wait_until_ready(self) -> None:
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeFailure(
                    "TFF's worker ended at start with code "
                    f"{self._process.returncode}; "
                    f"its output is in {self.log_path}"
                )
            try:
                ready.result(timeout=POLL_SECONDS)
                return
            except grpc.FutureTimeoutError:
                continue
        raise RuntimeFailure(
            f"TFF's worker did not answer within {READY_SECONDS:.0f} s; "
            f"its output is in {self.log_path}"
        )

    def _context(self) -> Any:
        def executor(cardinalities: Mapping[Any, int]) -> Any:
            made = tff.framework.RemoteExecutor(self._stub)
            made.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
            return made

        return tff.framework.SyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )


def worker_binary() -> Path:
    """The worker program inside the installed TFF package."""
    return Path(tff.__file__).parent / "data" / "worker_binary"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
