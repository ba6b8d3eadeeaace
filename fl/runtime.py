"""Runs TFF's computations on workers, and goes on when one of them fails.

TFF's runtime is a separate program reached by gRPC (`fl.workers`). One worker runs a
computation as it is; several share the clients of a computation among them, as far as
it has a single aggregation.

A computation is a function of its arguments, so one that a lost worker cut off is run
again: on a new worker, or on those that are left.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type

import grpc
import tensorflow_federated as tff
from absl import logging

from fl import workers as all_workers
from fl.workers import LocalWorker, RuntimeFailure, Worker

MOST_FAILURES = 3
_RESUME = "--resume continues from the last complete round"


class _NoWorker(tff.framework.SyncContext):
    """Stands where TFF would start a worker of its own."""

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Refuses: computations run inside `with Runtime(...)`."""
        raise RuntimeFailure(
            "no worker is running; computations need `fl.runtime.Runtime`"
        )


# TFF comes with a context that would start a worker behind our back, and that ends
# with a stray traceback even when never used.
tff.framework.set_default_context(_NoWorker())


class Runtime(tff.framework.SyncContext):
    """Workers, and the TFF context that runs computations on them."""

    def __init__(self, workers: Sequence[Worker]):
        """Starts the workers and waits until they answer.

        Local ones take over the settings of `fl.environment` from this process.

        Raises:
            RuntimeFailure: if one does not answer in time.
        """
        self.workers = list(workers)
        self._outer: Any = None
        self._failures = 0
        self._compile = _compiled_once()
        self._retired: List[Any] = []
        all_workers.start_all(self.workers)
        if any(
            isinstance(w, LocalWorker) and not w.is_closed_to_others for w in workers
        ):
            logging.warning(
                "this system allows no network namespace: while the run lasts, others "
                "on this machine and its network can use its TFF worker; a firewall "
                "helps"
            )
        self._context = self._make_context()

    def __enter__(self) -> Runtime:
        self._outer = tff.framework.get_context_stack().current
        tff.framework.set_default_context(self)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        tff.framework.set_default_context(self._outer)
        self.close()

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation, again if a worker failed under it.

        Raises:
            RuntimeFailure: if that happens too often.
        """
        while True:
            try:
                result = self._context.invoke(comp, arg)
            except Exception:
                checks = [worker.check() for worker in self.workers]
                if all(checks):
                    raise
                self._mend()
            else:
                self._failures = 0
                return result

    def close(self) -> None:
        """Ends all connections and local workers; they are gone on return."""
        for worker in self.workers:
            worker.close()
        self._retired.clear()

    def _mend(self) -> None:
        """Replaces the workers that failed, or goes on without them."""
        failed = [worker for worker in self.workers if worker.has_failed]
        faults = " and ".join(f"{worker.name} {worker.fault}" for worker in failed)
        self._count_failure(faults)
        lost = [worker for worker in failed if not self._replace(worker)]
        self.workers = [worker for worker in self.workers if worker not in lost]
        if not self.workers:
            raise RuntimeFailure(f"{faults}, and no worker is left; {_RESUME}")
        what = "the others take its clients" if lost else "it is replaced"
        logging.warning("%s; %s, and its work is repeated", faults, what)
        # A call to a worker that still answers may hold the old context.
        self._retired.append(self._context)
        self._context = self._make_context()

    def _replace(self, worker: Worker) -> bool:
        """Starts a local worker anew, or finds a remote one again if it is there."""
        while True:
            try:
                all_workers.start_all([worker])
                return True
            except RuntimeFailure as error:
                if not isinstance(worker, LocalWorker):
                    return False
                self._count_failure(str(error))

    def _count_failure(self, what: str) -> None:
        self._failures += 1
        if self._failures == MOST_FAILURES:
            raise RuntimeFailure(
                f"{what}; that was failure {MOST_FAILURES} in a row; {_RESUME}"
            )

    def _make_context(self) -> Any:
        links = [_Link(worker, self._compile) for worker in self.workers]
        if len(links) == 1:
            return links[0].context
        return tff.backends.native.create_mergeable_comp_execution_context(links)


def _compiled_once() -> Callable[[Any], Any]:
    """TFF's compiler; what it made for one worker serves the others."""
    made: Dict[Any, Any] = {}
    lock = threading.Lock()

    def compile_(comp: Any) -> Any:
        with lock:
            if comp not in made:
                made[comp] = tff.backends.native.desugar_and_transform_to_native(comp)
            return made[comp]

    return compile_


class _Link(tff.framework.AsyncContext):
    """One worker as TFF sees it.

    TFF's calls to a worker block, so that several workers would take turns; each
    has a thread of its own instead.
    """

    def __init__(self, worker: Worker, compiler_fn: Callable[[Any], Any]):
        self._stub = _OneTry(worker)
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self.context = tff.framework.SyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(self._executor),
            compiler_fn=compiler_fn,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    async def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation on the worker while others run theirs."""
        loop = asyncio.get_running_loop()
        # When one worker fails, nobody waits for what becomes of the others.
        loop.set_exception_handler(lambda loop, context: None)
        return await loop.run_in_executor(self._thread, self.context.invoke, comp, arg)

    def _executor(self, cardinalities: Mapping[Any, int]) -> Any:
        # Values are whole sets of weights: they are freed at once, not by the dozen.
        made = tff.framework.RemoteExecutor(self._stub, dispose_batch_size=1)
        made.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
        return made


class _OneTry:
    """The calls to a worker; one that finds no worker fails at once.

    TFF would try again for ever, with pauses of up to half a minute.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._stub = tff.framework.RemoteExecutorGrpcStub(worker.connection.computing)

    def dispose(self, request: Any) -> Any:
        """Has the worker forget values; a lost worker has forgotten them."""
        with contextlib.suppress(grpc.RpcError, ValueError):
            return self._stub.dispose(request)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        method = getattr(self._stub, name)

        def call(request: Any) -> Any:
            try:
                return method(request)
            except tff.framework.RetryableError as error:
                # The other code among these may be the computation's own.
                lost = _code(error) is grpc.StatusCode.UNAVAILABLE
                if lost or self._worker.may_forget:
                    self._worker.fail()
                raise _CallFailed(_details(error)) from error
            except ValueError as error:  # What gRPC says of a closed channel.
                raise _CallFailed(str(error)) from error

        return call


class _CallFailed(grpc.RpcError):
    """A call that TFF would otherwise try again for ever."""


def _code(error: Exception) -> Any:
    return error.code() if isinstance(error, grpc.Call) else None


def _details(error: Exception) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)
