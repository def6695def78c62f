"""The speech route over a real socket: streaming, clients that leave, clients that read slowly, bodies cut off."""

import asyncio
import json
import logging
import re
from pathlib import Path

import httpx
import pytest

from duotone.server.config import HttpOptions, Settings
from duotone.stages.errors import NotReady, StageFailed

from .decoding import assert_lasts, decoded
from .fake_pipeline import spoken, sung_frame
from .live_client import until

SPEECH = "/v1/audio/speech"
DEADLINE_S = 10
LONG = "a" * 4000
LONG_BYTES = len(spoken(LONG))


async def raw_request(port: int, *bodies: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent a request, or several at once, and read nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    contents = [json.dumps(body).encode() for body in bodies]
    writer.writelines(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
        for content in contents
    )
    await writer.drain()
    return reader, writer


def established(port: int) -> int:
    """The connections that a server on that port has."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(f":{port:04X}") and state == "01" for _, local, _, state, *_ in rows)


async def keep(answer: httpx.Response, received: list[bytes]) -> None:
    """Read an answer to its end, keeping what came before a failure."""
    async for chunk in answer.aiter_raw():
        received.append(chunk)  # noqa: PERF401  (a comprehension would keep nothing)


async def cancellation(pipeline) -> None:
    """Wait until the pipeline is told to stop a piece."""
    async with asyncio.timeout(DEADLINE_S):
        await pipeline.cancellations.acquire()


async def test_samples_arrive_while_more_are_made(live, ask, pipeline):
    pipeline.gate = asyncio.Semaphore(1)
    async with live.stream("POST", SPEECH, json=ask(response_format="pcm")) as answer:
        chunks = answer.aiter_bytes(len(spoken("H")))
        assert await anext(chunks) == spoken("H")
        assert pipeline.made_chunks == 1
        pipeline.gate.release()
        assert await anext(chunks) == spoken("e")
        for _ in "llo. ":
            pipeline.gate.release()
        assert b"".join([chunk async for chunk in chunks]) == spoken("llo.")


async def test_the_status_waits_for_the_first_samples(port, ask, pipeline):
    pipeline.gate = asyncio.Semaphore(0)
    reader, writer = await raw_request(port, ask())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.2)
    pipeline.gate.release()
    assert (await asyncio.wait_for(reader.readline(), DEADLINE_S)).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": "pcm"}, {"stream": False}, {"stream_format": "sse"}, {"speed": 0.5}]
)
async def test_a_client_that_leaves_before_the_first_samples_stops_the_work(port, ask, pipeline, fields):
    pipeline.gate = asyncio.Semaphore(0)
    _, writer = await raw_request(port, ask(**fields))
    async with asyncio.timeout(DEADLINE_S):
        while not pipeline.streams:  # noqa: ASYNC110  (the server's task has no event to wait for)
            await asyncio.sleep(0.01)
    writer.close()
    await cancellation(pipeline)
    assert pipeline.made_chunks == 0


async def test_a_client_that_leaves_a_complete_answer_stops_the_work(port, ask, pipeline):
    pipeline.gate = asyncio.Semaphore(3)
    _, writer = await raw_request(port, ask(stream=False))
    async with asyncio.timeout(DEADLINE_S):
        while pipeline.made_chunks < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()
    await cancellation(pipeline)
    assert pipeline.made_chunks == 3


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}])
async def test_a_client_that_leaves_after_a_kilobyte_stops_the_work_while_no_samples_come(port, ask, pipeline, fields):
    pipeline.gate = asyncio.Semaphore(1)
    reader, writer = await raw_request(port, ask(response_format="wav", **fields))
    await asyncio.wait_for(reader.readexactly(1000), DEADLINE_S)
    writer.close()
    await cancellation(pipeline)
    assert pipeline.made_chunks == 1


async def test_a_request_behind_one_without_an_answer_is_not_taken_and_leaving_is_noticed(port, ask, pipeline):
    pipeline.gate = asyncio.Semaphore(0)
    _, writer = await raw_request(port, ask(), ask(input="Another."))
    async with asyncio.timeout(DEADLINE_S):
        while not pipeline.streams:  # noqa: ASYNC110  (the server's task has no event to wait for)
            await asyncio.sleep(0.01)
    writer.close()
    await cancellation(pipeline)
    assert len(pipeline.streams) == 1


async def test_the_answer_to_the_first_of_two_requests_at_once_is_whole_and_ends_the_connection(port, ask):
    reader, writer = await raw_request(port, ask(response_format="wav", stream=False), ask(input="Another."))
    async with asyncio.timeout(DEADLINE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    assert len(body) == int(length[1])


async def test_leaving_stops_the_piece_that_is_made_ahead_too(port, ask, pipeline):
    pipeline.gate = asyncio.Semaphore(1)
    text = "The first sentence of the text is here. The second one that follows. And a third one there is."
    reader, writer = await raw_request(port, ask(input=text, response_format="pcm"))
    await asyncio.wait_for(reader.readexactly(1000), DEADLINE_S)
    writer.close()
    await cancellation(pipeline)
    await cancellation(pipeline)
    assert [stream.cancelled for stream in pipeline.streams] == [True, True]


async def test_fifty_that_leave_are_nothing_to_the_next(port, live, ask, pipeline):
    for _ in range(50):
        reader, writer = await raw_request(port, ask(input=LONG[:2000], response_format="pcm"))
        await asyncio.wait_for(reader.readexactly(1000), DEADLINE_S)
        writer.transport.abort()
    async with asyncio.timeout(DEADLINE_S):
        while any(stream.running for stream in pipeline.streams):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert pipeline.made_chunks < 50 * 2000
    assert (await live.post(SPEECH, json=ask(response_format="pcm"))).content == spoken("Hello.")


async def test_the_first_mp3_sound_comes_with_the_first_of_many_frames(live, ask, pipeline):
    pipeline.gate, pipeline.frame = asyncio.Semaphore(1), sung_frame
    async with live.stream("POST", SPEECH, json=ask(input="a" * 39)) as answer:
        first = await anext(answer.aiter_bytes())
        assert pipeline.made_chunks == 1
    # Too few for a decoder to know the format by: a tag, then a whole MPEG-2 layer III frame of 24 ms.
    assert (first[:3], first[45:47]) == (b"ID3", b"\xff\xf3")
    assert len(first) >= 45 + 288


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
async def test_encoded_bytes_arrive_long_before_the_end(live, ask, pipeline, format):
    pipeline.gate, pipeline.frame = asyncio.Semaphore(6), sung_frame
    async with live.stream("POST", SPEECH, json=ask(input="a" * 39, response_format=format)) as answer:
        received = b""
        chunks = answer.aiter_bytes()
        async with asyncio.timeout(DEADLINE_S):
            while len(received) < 2000 or decoded(received).seconds < 4 * 0.08:
                received += await anext(chunks)
        assert pipeline.made_chunks <= 6
        for _ in range(34):
            pipeline.gate.release()
        received += b"".join([chunk async for chunk in chunks])
    assert_lasts(decoded(received), format, 39 * 1920)


async def test_a_failure_after_the_first_samples_cuts_the_body_off(live, ask, pipeline, caplog):
    pipeline.fail_after, pipeline.failure = 3, StageFailed("the talker died")
    received = []
    async with live.stream("POST", SPEECH, json=ask(response_format="pcm")) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError), caplog.at_level(logging.ERROR):
            await keep(answer, received)
    assert b"".join(received) == spoken("Hel")
    assert "the talker died" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_piece_that_the_pipeline_cannot_take_yet_is_tried_again(live, ask, pipeline):
    pipeline.refusals = [None, NotReady("restarting"), NotReady("restarting")]
    text = "The first sentence of the text. The second one that follows."
    answer = await live.post(SPEECH, json=ask(input=text, response_format="pcm"))
    assert answer.content == spoken("The first sentence of the text.The second one that follows.")


@pytest.mark.parametrize("speed", [1.0, 0.5])
async def test_a_client_that_reads_nothing_is_held_back_and_slows_nobody(port, live, ask, pipeline, speed):
    reader, writer = await raw_request(port, ask(input=LONG, response_format="pcm", speed=speed))
    async with asyncio.timeout(DEADLINE_S):
        before = -1
        while pipeline.made_chunks != before:
            before = pipeline.made_chunks
            await asyncio.sleep(0.2)
    # What the kernel's socket buffers take (a few megabytes on loopback) is all that was made of 15 MB.
    assert pipeline.made_chunks * len(spoken("a")) < LONG_BYTES / 2
    assert (await live.post(SPEECH, json=ask(response_format="pcm"))).content == spoken("Hello.")
    received = 0
    async with asyncio.timeout(DEADLINE_S):
        while received < LONG_BYTES / speed:
            received += len(await reader.read(1 << 20))
    writer.close()


class TestSendTimeout:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(model="/models/robin", http=HttpOptions(send_timeout_s=0.3))

    async def test_a_client_that_takes_nothing_for_too_long_is_given_up(self, port, ask, pipeline):
        _, writer = await raw_request(port, ask(input=LONG, response_format="pcm"))
        await cancellation(pipeline)
        assert pipeline.made_chunks < len(LONG)
        assert {stream.cancel_reason for stream in pipeline.streams if stream.cancelled} == {"slow_client"}
        writer.close()

    @pytest.mark.parametrize("stream", [True, False])
    async def test_its_connection_is_cut_with_all_that_waits_for_it(self, port, ask, stream):
        _, writer = await raw_request(port, ask(input=LONG, response_format="pcm", stream=stream))
        await until(lambda: established(port) == 1)
        await until(lambda: established(port) == 0)
        writer.close()

    async def test_nor_is_it_waited_for_with_a_complete_file(self, port, ask):
        reader, writer = await raw_request(port, ask(input=LONG, response_format="pcm", stream=False))
        await asyncio.sleep(2)
        received = 0
        async with asyncio.timeout(DEADLINE_S):
            while part := await reader.read(1 << 20):
                received += len(part)
        assert received < LONG_BYTES
        writer.close()
