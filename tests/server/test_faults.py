"""Clients that send junk, stop in the middle or take nothing, over real sockets: a clean end, no alarm in the log."""

import asyncio
import contextlib
import json
import logging
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duotone.server import http_protocol
from duotone.server.config import HttpOptions, Settings
from duotone.server.errors import ClientGone
from duotone.server.http_protocol import MAX_HEAD_BYTES
from duotone.server.live_protocol import Obeyed
from duotone.server.live_speech import Wire
from duotone.server.logs import reveals_something

SPEECH = "/v1/audio/speech"
LIVE = f"{SPEECH}/stream"
OPENING = (
    f"GET {LIVE} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
DEADLINE_S = 5


@pytest.fixture
def settings() -> Settings:
    return Settings(model="/models/robin", http=HttpOptions(body_timeout_s=0.3))


@pytest.fixture
def alarms(caplog):
    """The records that would be shown as errors."""
    caplog.set_level(logging.INFO)
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if reveals_something(record) and (record.levelno >= logging.ERROR or record.exc_info)
    ]


async def said_to(port: int, *pieces: bytes) -> bytes:
    """What the server answers, to its end, to bytes that are sent piece by piece after its first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    async with asyncio.timeout(DEADLINE_S):
        for piece in pieces:
            writer.write(piece)
            answer += await reader.read(1 << 16)
        answer += await reader.read()
    writer.close()
    return answer


async def said(caplog, text: str) -> None:
    """Wait until a line of the log says it."""
    async with asyncio.timeout(DEADLINE_S):
        while text not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\xff\xff\xff\xff" * 16, id="no frame"),
        pytest.param(b"\x81\x84\0\0\0\0\xff\xfe\xff\xfe", id="no utf-8"),
        pytest.param(b"\x81\x85hell", id="half a frame"),
        pytest.param(b"\x88\x80\0\0\0\0" + b"\x81\x80\0\0\0\0" * 4, id="more after the close"),
    ],
)
async def test_junk_in_a_live_session_ends_it_without_an_alarm(port, alarms, caplog, junk):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(OPENING.encode())
    assert b"101 Switching Protocols" in await reader.readuntil(b"\r\n\r\n")
    writer.write(junk)
    writer.write_eof()
    await reader.read()
    await said(caplog, "the session ends")
    writer.close()
    await asyncio.sleep(0.05)
    assert caplog.text.count("the session ends") == 1
    assert alarms() == []


async def test_junk_while_a_session_speaks_ends_both_ends_of_it_without_an_alarm(port, ask, pipeline, alarms, caplog):
    async with connect(f"ws://127.0.0.1:{port}{LIVE}", proxy=None) as session:
        await session.send(json.dumps(ask(type="session")))
        await session.send(json.dumps({"type": "text", "text": 50 * "Hello there. "}))
        while isinstance(await session.recv(), str):
            pass
        session.transport.write(b"\xff\xff\xff\xff" * 16)
        await said(caplog, "the session ends")
    await asyncio.sleep(0.05)
    assert not any(stream.running for stream in pipeline.streams)
    assert caplog.text.count("the session ends") == 1
    assert alarms() == []


async def test_what_uvicorn_says_of_a_connection_that_it_has_closed_means_that_the_client_is_gone():
    class Closed:
        async def send_text(self, _: str) -> None:
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")

    with pytest.raises(ClientGone):
        await Wire(Closed(), HttpOptions()).tell(Obeyed(type="cancelled"))


async def test_a_message_larger_than_any_ends_the_session_with_an_error_and_without_an_alarm(port, alarms):
    async with connect(f"ws://127.0.0.1:{port}{LIVE}", proxy=None, compression=None) as session:
        with contextlib.suppress(ConnectionClosed):
            await session.send("x" * (20 << 20))
        told = json.loads(await session.recv())
        assert (told["type"], told["error"]["code"]) == ("error", "body_too_large")
        assert told["error"]["message"] == f"the message is larger than {16 << 20} bytes"
        await session.wait_closed()
        assert session.close_code == 1009
    await asyncio.sleep(0.05)
    assert alarms() == []


async def test_an_opening_of_an_unknown_path_is_404_in_the_envelope(port, alarms):
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{port}/v1/realtime", proxy=None)
    assert json.loads(refused.value.response.body)["error"]["code"] == "not_found"
    assert refused.value.response.status_code == 404
    assert refused.value.response.headers["X-Request-Id"]
    assert alarms() == []


@pytest.mark.parametrize(
    "endless",
    [
        b"q" * MAX_HEAD_BYTES,
        b" HTTP/1.1\r\nA: " + b"a" * MAX_HEAD_BYTES,
        b" HTTP/1.1" + b"\r\nA: a" * (MAX_HEAD_BYTES // 6),
    ],
)
async def test_a_head_that_does_not_end_is_refused(port, endless):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live?")
    await asyncio.sleep(0.05)  # What comes at once with the first bytes is not counted.
    writer.write(b"q" + endless)
    async with asyncio.timeout(DEADLINE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\x16\x03\x01\x02\0\x01", id="a TLS hello"),
        pytest.param(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", id="an endless path"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", id="a bad chunk"),
    ],
)
async def test_what_is_no_http_is_refused_in_the_envelope(port, junk):
    head, _, body = (await said_to(port, junk)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("begun", [b"", b"GET /live", b"GET /live HTTP/1.1\r\nHost: a\r\n\r\nGET /"])
async def test_a_connection_whose_head_never_ends_is_closed(port, alarms, monkeypatch, begun):
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    async with asyncio.timeout(DEADLINE_S):
        await reader.read()
    writer.close()
    assert alarms() == []


async def test_an_answer_may_take_longer_than_its_head(live, ask, pipeline, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.1)
    assert await late_status(live, ask, pipeline, after_s=0.3) == 200


async def late_status(live, ask, pipeline, after_s: float) -> int:
    """Of a complete answer whose samples are made after so many seconds."""
    pipeline.gate = asyncio.Semaphore(0)
    asking = asyncio.create_task(live.post(SPEECH, json=ask(stream=False)))
    await asyncio.sleep(after_s)
    for _ in range(20):
        pipeline.gate.release()
    return (await asking).status_code


async def test_heads_are_bounded_each_for_itself(live):
    for _ in range(4):
        answer = await live.get("/live", headers={"A": "a" * 40_000})
        assert answer.status_code == 200


async def test_a_page_of_another_origin_is_refused_without_an_alarm(port, alarms):
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{port}{LIVE}", proxy=None, origin="http://elsewhere.example")
    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body)["error"]["code"] == "origin_not_allowed"
    assert alarms() == []


async def test_a_body_that_does_not_end_is_answered_in_time_and_its_connection_closed(port, alarms):
    begun_s = time.monotonic()
    head = (
        f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    )
    answer = await said_to(port, head.encode())
    assert 0.3 <= time.monotonic() - begun_s < DEADLINE_S
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["message"] == "the body did not end within 0.3 s"
    assert alarms() == []


async def test_an_answer_may_take_longer_than_its_body(live, ask, pipeline):
    assert await late_status(live, ask, pipeline, after_s=0.5) == 200
