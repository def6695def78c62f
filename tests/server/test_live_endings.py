"""WS /v1/audio/speech/stream over a real socket: how sessions are refused, fail and end, and clients that go."""

import asyncio
import json
import re

import pytest
from websockets.exceptions import InvalidStatus

from duotone.server.config import HttpOptions, Settings, TextOptions
from duotone.stages.errors import NotReady, QueueFull, RequestError, StageFailed

from .fake_pipeline import spoken
from .live_client import LONG, said, until, until_settled


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
