"""A live session's client, over a real socket, as a client library speaks to it."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

DEADLINE_S = 10
LONG = "a" * 39 + ". "


@dataclass
class Heard:
    """What a client was sent up to an event: the events, and the audio between them."""

    events: list[dict] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def segments(self) -> list[str]:
        return [event["text"] for event in self.events if event["type"] == "segment"]


class Client:
    """One session's client."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, type: str, **fields) -> None:
        await self.connection.send(json.dumps({"type": type} | fields))

    async def text(self, *texts: str) -> None:
        for text in texts:
            await self.say("text", text=text)

    async def next(self) -> dict | bytes:
        async with asyncio.timeout(DEADLINE_S):
            message = await self.connection.recv()
        return message if isinstance(message, bytes) else json.loads(message)

    async def until(self, type: str) -> Heard:
        """Everything up to the next event of a type."""
        heard = Heard()
        while not heard.events or heard.events[-1]["type"] != type:
            message = await self.next()
            if isinstance(message, bytes):
                heard.audio += message
            else:
                heard.events.append(message)
        return heard

    async def closed(self) -> int:
        """The code that the server closes with; nothing may come before."""
        with pytest.raises(ConnectionClosed) as closed:
            await self.next()
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code

    async def error(self) -> tuple[dict, int]:
        """The error that ends the session, and the code of its end."""
        heard = await self.until("error")
        return heard.events[-1]["error"], await self.closed()


async def until(condition) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_settled(value) -> None:
    """Wait until a value stays the same."""
    before = None
    async with asyncio.timeout(DEADLINE_S):
        while value() != before:
            before = value()
            await asyncio.sleep(0.2)


async def said(client: Client, *texts: str) -> Heard:
    """All that is heard of a text that comes in these parts, and then ends."""
    await client.text(*texts)
    await client.say("end")
    heard = await client.until("done")
    assert await client.closed() == 1000
    return heard
