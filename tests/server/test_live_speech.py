"""WS /v1/audio/speech/stream over a real socket: what a session says, and how it is flushed and cancelled."""

import asyncio

import pytest

from duotone.server.narration import piece_seed
from duotone.stages.types import SAMPLES_PER_FRAME

from .decoding import assert_lasts, decoded
from .fake_pipeline import spoken
from .live_client import LONG, Heard, said, until, until_settled

TEXT = "**First** one. Dr. Who paid 3.14, didn't he? [Here](http://x.y/z. w) is 🎉 more.\n- item\n- and a last one"
PIECES = ["First one.", "Dr. Who paid 3.14, didn't he?", "Here is more.", "item.", "and a last one."]


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
