"""The two ends of the socket pair between the API process and one worker: asynchronous there, blocking here.

A pair of ZeroMQ PAIR sockets over `ipc://`: ordered, one peer each. The high-water marks are off because what is in
flight is already bounded by the slots of the stages; a dropped or blocked message would lose a request.
"""

import asyncio
import contextlib
from collections.abc import Iterator

import zmq

from .messages import Command, Event, decode_commands, decode_event, encode_commands, encode_event

Context = zmq.Context[zmq.Socket[bytes]]


class OrchestratorChannel:
    """The orchestrator's end, which binds. Event loop only.

    A plain socket: pyzmq's asynchronous one spends several times as much on a message.
    """

    def __init__(self, context: Context, address: str) -> None:
        """Raises zmq.ZMQError for an address that cannot be bound."""
        self._socket = context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(address)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._descriptor = self._socket.fileno()
        self._readable = asyncio.Event()

    def send(self, *commands: Command) -> None:
        """Queue commands as one message; never waits. They go nowhere when the worker has not connected, or is gone."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(encode_commands(commands), zmq.NOBLOCK)
        # Whatever is done with a socket may swallow the signal that its descriptor gives for a message.
        if self._socket.poll(0):
            self._readable.set()

    async def receive(self) -> Event:
        """The next event, in the order sent. Raises msgspec.DecodeError on bytes that are no event."""
        while (event := self.receive_nowait()) is None:
            self._readable.clear()
            loop = asyncio.get_running_loop()
            loop.add_reader(self._descriptor, self._readable.set)
            try:
                await self._readable.wait()
            finally:
                loop.remove_reader(self._descriptor)
        return event

    def receive_nowait(self) -> Event | None:
        """The next event if one is there."""
        try:
            return decode_event(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def close(self) -> None:
        """Drop what is queued in either direction."""
        self._socket.close()


class WorkerChannel:
    """The worker's end. One thread at a time."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 1_000)
        self._socket.connect(address)

    def close(self) -> None:
        """Give what was sent a second to leave."""
        self._socket.close()
        self._context.term()

    def receive(self, wait_s: float | None) -> Iterator[Command]:
        """Every command that has arrived; before that waits for one, so long in whole milliseconds (None: for ever)."""
        self._socket.poll(None if wait_s is None else int(1000 * wait_s))
        while True:
            try:
                part = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield from decode_commands(part)

    def send(self, event: Event) -> None:
        """Queue an event; never waits."""
        self._socket.send(encode_event(event), zmq.NOBLOCK)
