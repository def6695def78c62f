"""The socket pair between the orchestrator and a worker: real sockets, both event loops."""

import asyncio
import threading
import time
from contextlib import closing

import pytest
import uvloop
import zmq

from duotone.stages.channel import OrchestratorChannel, WorkerChannel
from duotone.stages.messages import Abort, Decode, Failed, Shutdown

COMMANDS = 3_000


def echo(address: str) -> None:
    """A worker that answers every command by its key."""
    with closing(WorkerChannel(address)) as channel:
        while True:
            for command in channel.receive(None):
                if isinstance(command, Shutdown):
                    return
                assert isinstance(command, Decode)
                channel.send(Failed([command.key], ""))


async def ask(channel: OrchestratorChannel) -> list[int]:
    """Send commands alone and several at once while answers arrive; returns the keys of the answers."""

    async def answers() -> list[int]:
        return [(await channel.receive()).keys[0] for _ in range(COMMANDS)]

    listening = asyncio.create_task(answers())
    for key in range(0, COMMANDS, 3):
        first, second, third = (Decode(key + more, b"", False, 0.0) for more in range(3))
        channel.send(first)
        # Now and then the reader has to wait for its descriptor, mostly it is in the midst of things.
        await asyncio.sleep(0.001 if key % 50 == 0 else 0)
        channel.send(second, third)
    async with asyncio.timeout(30):
        return await listening


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_every_event_is_heard_in_order_while_commands_are_sent(tmp_path, loop):
    address = f"ipc://{tmp_path}/socket"

    async def main() -> list[int]:
        with zmq.Context() as context:
            channel = OrchestratorChannel(context, address)
            worker = threading.Thread(target=echo, args=(address,))
            worker.start()
            await asyncio.to_thread(channel._socket.poll, None, zmq.POLLOUT)
            keys = await ask(channel)
            channel.send(Shutdown())
            await asyncio.to_thread(worker.join)
            channel.close()
            return keys

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(main()) == list(range(COMMANDS))


async def test_commands_for_a_worker_that_is_not_there_go_nowhere(tmp_path):
    with zmq.Context() as context:
        channel = OrchestratorChannel(context, f"ipc://{tmp_path}/socket")
        channel.send(Abort([1]))
        assert channel.receive_nowait() is None
        channel.close()


def test_worker_waits_for_a_command_no_longer_than_it_is_told(tmp_path):
    address = f"ipc://{tmp_path}/socket"
    with (
        zmq.Context() as context,
        closing(OrchestratorChannel(context, address)) as orchestrator,
        closing(WorkerChannel(address)) as worker,
    ):
        orchestrator._socket.poll(None, zmq.POLLOUT)
        began_s = time.perf_counter()
        assert list(worker.receive(0)) == []
        assert list(worker.receive(0.05)) == []
        assert 0.05 <= time.perf_counter() - began_s < 5
        orchestrator.send(Abort([1]), Shutdown())
        assert list(worker.receive(60)) == [Abort([1]), Shutdown()]
        assert time.perf_counter() - began_s < 30
