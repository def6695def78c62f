"""The two ends of the socket pair between the API process and one worker: asynchronous there, blocking here.

A pair of ZeroMQ PAIR sockets over `ipc://`: ordered, one peer each. The high-water marks are off because what is in
flight is already bounded by the slots of the stages; a dropped or blocked message would lose a request.
"""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio

from .messages import Command, Event, decode_command, decode_event, encode


class OrchestratorChannel:
    """The orchestrator's end. It binds, so that a replaced worker finds the same address. Event loop only."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    def send(self, command: Command) -> None:
        """Queue a command; never waits. It goes nowhere when the worker has not connected, or is gone."""
        sent = self._socket.send(encode(command), zmq.NOBLOCK)
        # Without blocking, what it returns is a future that is done; Again says that nobody is there to read.
        assert isinstance(sent, asyncio.Future)
        if not isinstance(sent.exception(), zmq.Again):
            sent.result()

    async def receive(self) -> Event:
        """The next event, in the order sent. Raises msgspec.DecodeError on bytes that are no event."""
        return decode_event(await self._socket.recv())

    def receive_nowait(self) -> Event | None:
        """The next event if one is there. Not while `receive` waits."""
        received = self._socket.recv(zmq.NOBLOCK)
        # Without blocking, what it returns is a future that is done.
        assert isinstance(received, asyncio.Future)
        if isinstance(received.exception(), zmq.Again):
            return None
        return decode_event(received.result())

    def close(self) -> None:
        """Drop what is queued in either direction."""
        self._socket.close()


class WorkerChannel:
    """The worker's end. Main thread only."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 1_000)
        self._socket.connect(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._context.term()

    def receive(self, block: bool) -> Iterator[Command]:
        """Every command that has arrived; with `block`, waits until there is at least one."""
        flags = 0 if block else zmq.NOBLOCK
        while True:
            try:
                part = self._socket.recv(flags)
            except zmq.Again:
                return
            yield decode_command(part)
            flags = zmq.NOBLOCK

    def send(self, event: Event) -> None:
        """Queue an event; never waits."""
        self._socket.send(encode(event), zmq.NOBLOCK)
