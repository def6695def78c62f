"""WS /v1/audio/speech/stream over a real socket, as a client library speaks to it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duotone.server.config import HttpOptions, Settings, TextOptions
from duotone.server.narration import piece_seed
from duotone.stages.errors import NotReady, QueueFull, RequestError, StageFailed
from duotone.stages.types import SAMPLES_PER_FRAME

from .decoding import assert_lasts, decoded
from .fake_pipeline import spoken

DEADLINE_S = 10
TEXT = "**First** one. Dr. Who paid 3.14, didn't he? [Here](http://x.y/z. w) is 🎉 more.\n- item\n- and a last one"
PIECES = ["First one.", "Dr. Who paid 3.14, didn't he?", "Here is more.", "item.", "and a last one."]
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


@pytest.fixture
def opening(port):
    @asynccontextmanager
    async def opening(**options) -> AsyncIterator[Client]:
        url = f"ws://127.0.0.1:{port}/v1/audio/speech/stream"
        async with connect(url, proxy=None, compression=None, **options) as connection:
            yield Client(connection)

    return opening


@pytest.fixture
def session(opening):
    @asynccontextmanager
    async def session(**fields) -> AsyncIterator[Client]:
        async with opening() as client:
            await client.say("session", **{"model": "tts-1"} | fields)
            assert (await client.next())["type"] == "ready"
            yield client

    return session


async def until(condition) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def said(client: Client, *texts: str) -> Heard:
    """All that is heard of a text that comes in these parts, and then ends."""
    await client.text(*texts)
    await client.say("end")
    heard = await client.until("done")
    assert await client.closed() == 1000
    return heard


async def test_a_session_is_accepted_with_what_its_audio_is(opening):
    async with opening(additional_headers={"X-Request-Id": "mine-1"}) as client:
        await client.say("session", model="robin", voice="alloy")
        ready = {"type": "ready", "request_id": "mine-1", "response_format": "pcm", "sample_rate": 24000, "channels": 1}
        assert await client.next() == ready
        assert client.connection.response.headers["X-Request-Id"] == "mine-1"


@pytest.mark.parametrize("parts", [[TEXT], list(TEXT), [TEXT[at : at + 5] for at in range(0, len(TEXT), 5)]])
async def test_the_parts_of_a_text_leave_no_trace_in_its_audio(session, parts):
    async with session(seed=5) as client:
        heard = await said(client, *parts)
    assert heard.segments == PIECES
    assert heard.audio == spoken("".join(PIECES))


async def test_audio_comes_while_the_text_is_not_complete(session):
    async with session() as client:
        await client.text("Hello", " there", ". And", " then")
        heard = Heard()
        while len(heard.audio) < len(spoken("Hello there.")):
            message = await client.next()
            heard.audio += message if isinstance(message, bytes) else b""
        assert heard.audio == spoken("Hello there.")
        assert (await said(client, " more.")).audio == spoken("And then more.")


async def test_segments_tell_which_text_begins_to_sound_and_when(session):
    async with session() as client:
        heard = await said(client, "One. Two, three. Four")
    frame_s = SAMPLES_PER_FRAME / 24000
    assert [event for event in heard.events if event["type"] == "segment"] == [
        {"type": "segment", "index": 0, "text": "One.", "start_s": 0},
        {"type": "segment", "index": 1, "text": "Two, three.", "start_s": round(4 * frame_s, 3)},
        {"type": "segment", "index": 2, "text": "Four", "start_s": round(15 * frame_s, 3)},
    ]


async def test_a_segment_is_told_before_its_audio(session):
    async with session() as client:
        await client.text("One. Two. ")
        order = [await client.next() for _ in range(9)]
    kinds = [message if isinstance(message, bytes) else message["text"] for message in order]
    assert kinds[:1] + kinds[5:6] == ["One.", "Two."]


async def test_one_piece_is_made_ahead_and_no_more(session, pipeline):
    pipeline.gate = asyncio.Semaphore(1)
    async with session() as client:
        await client.text("One. Two. Three. Four. ")
        await until(lambda: len(pipeline.streams) == 2)
        await asyncio.sleep(0.05)
        assert [stream.text for stream in pipeline.streams] == ["One.", "Two."]


async def test_choices_reach_every_piece_and_each_has_its_own_seed(session, pipeline):
    choices = {"voice": "ryan", "language": "English", "instructions": "Whisper.", "seed": 5, "max_new_frames": 9}
    async with session(**choices) as client:
        await client.text("One. ")
        await client.say("flush")
        await said(client, "Two. ")
    assert [stream.choices for stream in pipeline.streams] == [["english", "ryan", "Whisper.", "None", "None"]] * 2
    assert [stream.sampling.seed for stream in pipeline.streams] == [5, piece_seed(5, 1)]
    assert [stream.sampling.max_new_frames for stream in pipeline.streams] == [9, 9]


async def test_an_end_without_speech_is_an_end(session):
    async with session() as client:
        heard = await said(client, "... 🎉 ")
    assert (heard.types, heard.audio) == (["done"], b"")
    assert heard.events[-1]["usage"] == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac"])
async def test_what_is_spoken_between_flushes_is_one_file_in_every_format(session, format):
    async with session(response_format=format) as client:
        for text in ("One, two. Three.", "Four."):
            await client.text(text)
            await client.say("flush")
            heard = await client.until("flushed")
            samples = SAMPLES_PER_FRAME * len("".join(heard.segments))
            assert_lasts(decoded(bytes(heard.audio)), format, samples)


async def test_speed_holds_for_the_audio_and_for_the_times_of_segments(session):
    async with session(speed=2) as client:
        heard = await said(client, "One, two. Three.")
    assert len(heard.audio) == len(spoken("One, two.Three.")) / 2
    assert [event["start_s"] for event in heard.events[:-1]] == [0, 9 * SAMPLES_PER_FRAME / 24000 / 2]


class TestFlush:
    async def test_speaks_what_is_there_and_tells_when_it_is_sent(self, session):
        async with session() as client:
            await client.text("Hel", "lo the")
            await client.say("flush")
            heard = await client.until("flushed")
            assert (heard.segments, heard.audio) == (["Hello the"], spoken("Hello the"))
            heard = await said(client, "re. Yes.")
            assert (heard.segments, heard.audio) == (["re.", "Yes."], spoken("re.Yes."))
            assert [event["start_s"] for event in heard.events[:1]] == [0]

    async def test_of_nothing_is_answered_too(self, session):
        async with session() as client:
            await client.say("flush")
            await client.say("flush")
            assert (await client.until("flushed")).types == ["flushed"]
            assert (await said(client, "One.")).types == ["flushed", "segment", "done"]

    async def test_usage_counts_all_that_was_spoken(self, session):
        async with session() as client:
            await client.text("One.")
            await client.say("flush")
            usage = (await said(client, "Two. Three")).events[-1]["usage"]
        assert usage == {"input_tokens": 21, "output_tokens": 13, "total_tokens": 34}


class TestCancel:
    async def test_nothing_of_what_was_cancelled_comes_after_it(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(2)
        async with session() as client:
            await client.text("Abc. Def. Ghi. Jk")
            await until(lambda: pipeline.made_chunks == 2)
            await client.say("cancel")
            heard = await client.until("cancelled")
            assert heard.audio == spoken("Ab")
            pipeline.gate = None
            heard = await said(client, "lm. Nop.")
        assert (heard.segments, heard.audio) == (["lm.", "Nop."], spoken("lm.Nop."))
        assert [event["start_s"] for event in heard.events if event.get("index") == 1] == [0]

    async def test_stops_both_stages_at_once(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(1)
        async with session() as client:
            await client.text("Abc. Def. Ghi. ")
            await until(lambda: len(pipeline.streams) == 2)
            await client.say("cancel")
            await client.until("cancelled")
            assert [stream.cancelled for stream in pipeline.streams] == [True, True]
            assert {stream.cancel_reason for stream in pipeline.streams} == {"cancel"}
            assert len(pipeline.streams) == 2

    async def test_forgets_flushes_too(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(1)
        async with session() as client:
            await client.text("Abc.")
            await client.say("flush")
            await client.text("Def.")
            await client.say("flush")
            await client.say("cancel")
            assert "flushed" not in (await client.until("cancelled")).types
            pipeline.gate = None
            assert (await said(client, "Ghi.")).types == ["segment", "done"]

    async def test_of_nothing_is_answered_too(self, session):
        async with session() as client:
            await client.say("cancel")
            assert (await client.until("cancelled")).types == ["cancelled"]
            assert (await said(client, "One.")).audio == spoken("One.")

    async def test_after_the_end_ends_at_once(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(1)
        async with session() as client:
            await client.text("Abc. Def. ")
            await client.say("end")
            await until(lambda: len(pipeline.streams) == 2)
            await client.say("cancel")
            assert (await client.until("cancelled")).audio == spoken("A")
            done = await client.next()
            assert done["usage"] == {"input_tokens": 14, "output_tokens": 1, "total_tokens": 15}
            assert await client.closed() == 1000

    async def test_works_while_the_client_takes_nothing(self, session, pipeline):
        async with session() as client:
            client.connection.transport.pause_reading()
            for _ in range(100):
                await client.text(LONG)
            await until_settled(lambda: pipeline.made_chunks)
            await client.say("cancel")
            await until(lambda: not any(stream.running for stream in pipeline.streams))
            client.connection.transport.resume_reading()
            assert (await client.until("cancelled")).types[-1] == "cancelled"
            assert (await said(client, "One.")).audio == spoken("One.")


async def until_settled(value) -> None:
    """Wait until a value stays the same."""
    before = None
    async with asyncio.timeout(DEADLINE_S):
        while value() != before:
            before = value()
            await asyncio.sleep(0.2)


class TestRefusals:
    """What ends a session: an error in the envelope's shape, and then a close."""

    @pytest.mark.parametrize(
        ("fields", "param", "code"),
        [
            ({"voice": "nobody"}, "voice", "invalid_value"),
            ({"model": "gpt-9"}, "model", "model_not_found"),
            ({"model": None}, "model", "invalid_value"),
            ({"speed": 9}, "speed", "invalid_value"),
            ({"response_format": "wav"}, "response_format", "invalid_value"),
            ({"min_new_frames": 5, "max_new_frames": 4}, "min_new_frames", "invalid_value"),
            ({"instructions": "x" * 4097}, "instructions", "invalid_value"),
        ],
    )
    async def test_a_session_is_checked_like_a_request(self, opening, fields, param, code):
        async with opening() as client:
            await client.say("session", **{"model": "tts-1"} | fields)
            error, closed = await client.error()
        assert (error["type"], error["param"], error["code"], closed) == ("invalid_request_error", param, code, 1008)

    @pytest.mark.parametrize(
        ("message", "param", "code", "closed"),
        [
            ("{", None, "invalid_json", 1008),
            ("[1]", "type", "invalid_value", 1008),
            ("{}", "type", "invalid_value", 1008),
            ('{"type": "shout"}', "type", "invalid_value", 1008),
            ('{"type": "text"}', "text", "invalid_value", 1008),
            ('{"type": "text", "text": 5}', "text", "invalid_value", 1008),
            ('{"type": "session", "model": "tts-1"}', "type", "invalid_value", 1008),
            (b"\x00\x01", None, "binary_message", 1003),
            (json.dumps({"type": "text", "text": "x" * (1 << 16)}), None, "body_too_large", 1009),
            (json.dumps({"type": "text", "text": "x" * 16_385}), "text", "invalid_value", 1008),
        ],
    )
    async def test_a_message_at_fault_ends_the_session(self, session, pipeline, message, param, code, closed):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            await client.text("Hello. ")
            await until(lambda: pipeline.streams)
            await client.connection.send(message)
            error, code_of_close = await client.error()
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
        assert code_of_close == closed
        assert pipeline.streams[0].cancelled

    async def test_a_session_larger_than_a_request_body_is_told(self, opening, settings):
        async with opening() as client:
            await client.say("session", model="tts-1", ref_audio="x" * settings.http.max_body_bytes)
            error, closed = await client.error()
        assert (error["code"], closed) == ("body_too_large", 1009)

    @pytest.mark.parametrize("type", ["text", "flush", "cancel", "end"])
    async def test_the_session_comes_first(self, opening, type):
        async with opening() as client:
            await client.say(type, text="Hello.")
            error, closed = await client.error()
        assert (error["param"], closed) == ("type", 1008)
        assert "session" in error["message"]

    @pytest.mark.parametrize("type", ["text", "flush", "end"])
    async def test_nothing_comes_after_the_end_but_cancel(self, session, pipeline, type):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            await client.text("Hello.")
            await client.say("end")
            await client.say(type, text="More.")
            error, closed = await client.error()
        assert (error["param"], error["message"], closed) == ("type", f"`{type}` came after `end`", 1008)

    async def test_text_that_waits_is_bounded_whatever_holds_it_up(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            for _ in range(16_384 // len(LONG)):
                await client.text(LONG)
            await client.say("cancel")
            assert (await client.until("cancelled")).types == ["cancelled"]
            for _ in range(16_384 // len(LONG) + 20):
                await client.text(LONG)
            error, closed = await client.error()
        assert (error["param"], closed) == ("text", 1008)
        assert "16384" in error["message"]

    async def test_flushes_that_wait_are_bounded(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            await client.text("Hello. ")
            for _ in range(16_384 // 64 + 1):
                await client.say("flush")
            error, closed = await client.error()
        assert (error["param"], closed) == ("text", 1008)

    async def test_a_text_that_fits_no_prompt_names_the_text(self, session, pipeline):
        pipeline.refusals = [RequestError("too long", "input")]
        async with session() as client:
            await client.text("Hello. ")
            error, closed = await client.error()
        assert (error["message"], error["param"], closed) == ("too long", "text", 1008)

    async def test_a_page_of_this_server_or_an_allowed_origin_is_not(self, opening, port):
        for origin in ("http://page.example", f"http://127.0.0.1:{port}"):
            async with opening(origin=origin) as client:
                await client.say("session", model="tts-1")
                assert (await client.next())["type"] == "ready"


class TestTextThatGrowsWhenItIsSpoken:
    @pytest.fixture
    def settings(self, settings) -> Settings:
        return settings.model_copy(update={"text": TextOptions(normalise="on", pause_s=0)})

    async def test_it_counts_as_it_is_spoken_at_the_message_that_is_too_much(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            await client.text("%" * 3_000)
            error, closed = await client.error()
        assert (error["param"], closed) == ("text", 1008)
        assert re.match(r"2\d{4} characters, as they are spoken, would wait: over 16384", error["message"])

    async def test_at_the_end_too(self, session):
        async with session(non_streaming_mode=True) as client:
            await client.text("[" + "1" * 10_000)
            await client.say("end")
            error, closed = await client.error()
        assert (error["param"], closed) == ("text", 1008)

    async def test_what_is_not_spoken_does_not_count(self, session):
        async with session() as client:
            assert (await said(client, " " * 20_000, "Hello.", "\n" * 20_000)).audio == spoken("Hello.")


class TestFailures:
    @pytest.mark.parametrize(
        ("refusal", "code", "closed"),
        [(QueueFull("256 are waiting", 3), "queue_full", 1013), (NotReady("restarting"), "not_ready", 1011)],
    )
    async def test_what_the_pipeline_refuses_is_told(self, session, pipeline, refusal, code, closed):
        pipeline.refusals = [refusal]
        async with session() as client:
            await client.text("Hello. ")
            error, code_of_close = await client.error()
        assert (error["message"], error["code"], code_of_close) == (str(refusal), code, closed)

    async def test_no_session_begins_before_the_pipeline_is_ready(self, opening, pipeline):
        pipeline.ready = False
        async with opening() as client:
            await client.say("session", model="tts-1")
            error, closed = await client.error()
        assert (error["code"], closed) == ("not_ready", 1011)

    async def test_a_failure_while_speaking_is_told_behind_what_was_spoken(self, session, pipeline):
        pipeline.fail_after, pipeline.failure = 3, StageFailed("the talker died")
        async with session() as client:
            await client.text("Hello. And more. ")
            heard = await client.until("error")
            assert heard.audio == spoken("Hel")
            assert heard.events[-1]["error"]["message"] == "the talker died"
            assert await client.closed() == 1011
        assert all(stream.cancelled for stream in pipeline.streams)

    async def test_an_unexpected_failure_tells_nothing_of_itself(self, session, pipeline):
        pipeline.fail_after, pipeline.failure = 0, ValueError("secret")
        async with session() as client:
            await client.text("Hello. ")
            error, closed = await client.error()
        assert (error["code"], closed) == ("internal_error", 1011)
        assert "secret" not in error["message"]


class TestKeys:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(model="/models/robin", http=HttpOptions(api_keys=("sesame",)))

    @pytest.mark.parametrize(
        ("headers", "fields"),
        [({"Authorization": "Bearer sesame"}, {}), ({}, {"api_key": "sesame"})],
    )
    async def test_a_key_may_come_in_the_header_or_in_the_first_message(self, opening, headers, fields):
        async with opening(additional_headers=headers) as client:
            await client.say("session", model="tts-1", **fields)
            assert (await client.next())["type"] == "ready"

    @pytest.mark.parametrize("fields", [{}, {"api_key": "simsalabim"}, {"api_key": ""}, {"api_key": None}])
    async def test_no_session_begins_without_one(self, opening, fields):
        async with opening() as client:
            await client.say("session", model="tts-1", **fields)
            error, closed = await client.error()
        assert (error["code"], closed) == ("invalid_api_key", 1008)

    async def test_a_wrong_one_in_the_header_opens_nothing(self, opening):
        with pytest.raises(InvalidStatus) as refused:
            async with opening(additional_headers={"Authorization": "Bearer simsalabim"}):
                pass
        assert refused.value.response.status_code == 401


class TestClientsThatGo:
    @pytest.mark.parametrize("leave", ["close", "abort"])
    async def test_leaving_stops_both_stages_at_once(self, session, pipeline, leave):
        pipeline.gate = asyncio.Semaphore(1)
        async with session() as client:
            await client.text("Abc. Def. Ghi. ")
            await until(lambda: len(pipeline.streams) == 2)
            if leave == "abort":
                client.connection.transport.abort()
        await until(lambda: all(stream.cancelled for stream in pipeline.streams))
        assert {stream.cancel_reason for stream in pipeline.streams} == {"disconnect"}
        assert (len(pipeline.streams), pipeline.made_chunks) == (2, 1)

    async def test_fifty_that_leave_are_nothing_to_the_next(self, session, pipeline):
        for _ in range(50):
            async with session() as client:
                await client.text("Hello there. And more of it. ")
                await client.next()
                client.connection.transport.abort()
        await until(lambda: not any(stream.running for stream in pipeline.streams))
        async with session() as client:
            assert (await said(client, "Hello.")).audio == spoken("Hello.")

    async def test_one_that_takes_nothing_holds_its_own_speech_back_and_nobody_else_s(self, session, pipeline):
        async with session() as slow:
            slow.connection.transport.pause_reading()
            for _ in range(300):
                await slow.text(LONG)
            await until_settled(lambda: pipeline.made_chunks)
            assert pipeline.made_chunks < 300 * 40 / 2
            async with session() as client:
                assert (await said(client, "Hello.")).audio == spoken("Hello.")
            slow.connection.transport.resume_reading()
            assert (await said(slow)).segments[-1] == LONG.strip()
            slow.connection.transport.abort()


class TestShortPatience:
    @pytest.fixture
    def settings(self) -> Settings:
        http = HttpOptions(live_idle_s=0.3, send_timeout_s=0.5)
        return Settings(model="/models/robin", http=http, text=TextOptions(max_piece_chars=40))

    async def test_a_client_that_never_begins_is_sent_away(self, opening):
        async with opening() as client:
            error, closed = await client.error()
        assert (error["code"], closed) == ("idle_timeout", 1008)

    async def test_a_session_in_which_nothing_is_said_is_ended(self, session):
        async with session() as client:
            await client.text("Hello. And")
            await client.until("segment")
            error, closed = await client.error()
        assert (error["code"], closed) == ("idle_timeout", 1008)

    async def test_a_client_may_be_silent_while_it_listens(self, session, pipeline):
        pipeline.gate = asyncio.Semaphore(0)
        async with session() as client:
            await client.text("Hi. ")
            await asyncio.sleep(0.7)
            for _ in range(10):
                pipeline.gate.release()
            assert (await said(client)).audio == spoken("Hi.")

    async def test_one_that_takes_nothing_for_too_long_is_given_up(self, session, pipeline):
        async with session() as client:
            client.connection.transport.pause_reading()
            for _ in range(300):
                await client.text(LONG)
            await until(lambda: any(stream.cancelled for stream in pipeline.streams))
            assert {stream.cancel_reason for stream in pipeline.streams if stream.cancelled} == {"slow_client"}
            client.connection.transport.abort()
