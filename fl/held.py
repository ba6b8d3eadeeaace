"""Values that stay at a worker from one computation to the next.

A computation called in the usual way takes its arguments from this process and returns
its result to it. What only the next computation wants need not travel: a `Held` value
stands for it here, and can be an argument of any computation that runs on one worker.

It is a recipe: the value is made when a computation first wants it, and once again if
another worker has taken over from one that was lost.
"""

from __future__ import annotations

from typing import Any, Awaitable, Callable, List, Mapping, Sequence

import tensorflow_federated as tff


class Held(tff.framework.Ingestable, tff.framework.CardinalityCarrying):
    """A value at the worker; `sent`, `called` and indexing make one."""

    def __init__(
        self,
        type_signature: tff.Type,
        num_clients: int,
        make: Callable[[Any], Awaitable[Any]],
        sources: Sequence[Held] = (),
    ):
        """Makes nothing yet.

        Args:
            type_signature: of the value.
            num_clients: how many clients take part; the worker keeps values of
                computations with different numbers of them apart.
            make: from TFF's link to a worker to TFF's reference to the value there.
            sources: what the value is made from.
        """
        self._type_signature = type_signature
        self._num_clients = num_clients
        self._make = make
        self._sources = sources
        self._place: Any = None
        self._value: Any = None

    @property
    def type_signature(self) -> tff.Type:
        """The type of the value."""
        return self._type_signature

    @property
    def cardinality(self) -> Mapping[Any, int]:
        """How many clients take part."""
        return {tff.CLIENTS: self._num_clients}

    async def ingest(self, executor: Any) -> Any:
        """Makes the value unless it is there; for TFF to call.

        What it is made from comes first, from the oldest on: after a lost worker that
        may be all turns of a round, too many for calls within calls.
        """
        wanted = [self]
        while wanted:
            value = wanted[-1]
            missing = value._missing_sources(executor)
            if not missing:
                await value._be_at(executor)
                wanted.pop()
            wanted.extend(missing)
        return self._value

    def _missing_sources(self, executor: Any) -> List[Held]:
        if self._place is executor:
            return []
        return [source for source in self._sources if source._place is not executor]

    async def _be_at(self, executor: Any) -> None:
        if self._place is not executor:
            self._value = await self._make(executor)
            self._place = executor

    def __getitem__(self, index: int) -> Held:
        """A part of a value that is a struct; it stays at the worker as well."""

        async def select(executor: Any) -> Any:
            return await executor.create_selection(await self.ingest(executor), index)

        type_ = self._type_signature[index]
        return Held(type_, self._num_clients, select, [self])

    def forget_sources(self) -> None:
        """Has the worker free what this one was made from and is not wanted again."""
        wanted = [self]
        while wanted:
            for source in wanted.pop()._sources:
                if source._place is not None:
                    source._place = source._value = None
                    wanted.append(source)


def sent(value: Any, type_signature: tff.Type, num_clients: int) -> Held:
    """A value of this process, sent to the worker once."""
    return Held(
        type_signature,
        num_clients,
        lambda executor: executor.create_value(value, type_signature),
    )


def function(computation: tff.Computation, num_clients: int) -> Held:
    """A computation, compiled, to be `called` at the worker."""
    compiled = tff.backends.native.desugar_and_transform_to_native(computation)
    return sent(compiled, compiled.type_signature, num_clients)


def called(function_: Held, *arguments: Held) -> Held:
    """What a computation, itself at the worker, makes of values that are there."""

    async def call(executor: Any) -> Any:
        values = [await argument.ingest(executor) for argument in arguments]
        argument = await executor.create_struct(values) if values else None
        return await executor.create_call(await function_.ingest(executor), argument)

    type_ = function_.type_signature.result
    return Held(type_, function_.cardinality[tff.CLIENTS], call, arguments)
