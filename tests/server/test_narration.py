"""Pieces of one text: in order, without a gap, never more than one ahead."""

import asyncio

import pytest

from duotone.server.catalog import Catalog
from duotone.server.cloning import Cloning
from duotone.server.config import Settings, TextOptions
from duotone.server.narration import Narrator
from duotone.server.protocol import SpeechRequest
from duotone.stages.errors import NotReady, RequestError, StageFailed

from .fake_pipeline import plan_of, spoken

THREE = "The first sentence is the longest one. The second is not as long as it. And here the third."
PIECES = ["The first sentence is the longest one.", "The second is not as long as it.", "And here the third."]


@pytest.fixture
def narrate(settings, model, pipeline):
    catalog = Catalog(settings, model)
    narrator = Narrator(settings, catalog, Cloning(settings, catalog, None), plan_of, pipeline)
    return lambda **fields: narrator.begin("r", SpeechRequest(model="robin", **{"input": THREE} | fields))


def submitted(pipeline) -> list[str]:
    return [stream.text for stream in pipeline.streams]


async def test_a_piece_is_submitted_when_the_one_before_is_heard(narrate, pipeline):
    narration = await narrate()
    assert submitted(pipeline) == PIECES[:1]
    await anext(narration)
    assert submitted(pipeline) == PIECES[:2]
    for _ in PIECES[0][1:]:
        await anext(narration)
    assert submitted(pipeline) == PIECES[:2]
    assert await anext(narration) == spoken(PIECES[1][0])
    assert submitted(pipeline) == PIECES


async def test_a_later_piece_that_the_pipeline_never_takes_fails_the_answer(narrate, pipeline):
    pipeline.refusals = [None, *[NotReady("dead")] * 100]
    narration = await narrate()
    for sign in PIECES[0]:
        assert await anext(narration) == spoken(sign)
    with pytest.raises(NotReady):
        await anext(narration)


async def test_only_the_first_piece_can_be_refused_for_a_full_queue(narrate, pipeline):
    assert [samples async for samples in await narrate()]
    assert pipeline.followed == [False] + [True] * (len(PIECES) - 1)


async def test_leaving_the_context_cancels_every_piece(narrate, pipeline):
    with await narrate() as narration:
        await anext(narration)
    assert [stream.cancelled for stream in pipeline.streams] == [True, True]
    with pytest.raises(StopAsyncIteration):
        await anext(narration)


async def test_a_failure_of_a_piece_is_raised_and_the_next_one_cancelled(narrate, pipeline):
    pipeline.fail_after, pipeline.failure = 2, StageFailed("the talker died")
    with pytest.raises(StageFailed), await narrate() as narration:
        [samples async for samples in narration]
    assert [stream.cancel_reason for stream in pipeline.streams] == ["failure", "failure"]


async def test_usage_counts_the_prompts_and_the_frames_that_were_heard(narrate):
    narration = await narrate(max_new_frames=50)
    [samples async for samples in narration]
    # Three prompts of 7 positions: the last was read ahead while the second was heard.
    assert (narration.usage.input_tokens, narration.usage.output_tokens, narration.usage.total_tokens) == (21, 50, 71)


async def test_silence_takes_no_work_and_counts_nothing(narrate, pipeline):
    narration = await narrate(input="...")
    assert [samples async for samples in narration] == [bytes(2 * 4800)]
    assert pipeline.streams == []
    assert narration.usage.total_tokens == 0


PAUSE = bytes(2 * 3600)


class TestPauses:
    @pytest.fixture
    def settings(self, settings) -> Settings:
        return settings.model_copy(update={"text": TextOptions(max_piece_chars=40, pause_s=0.15)})

    async def test_between_sentences_there_is_silence_and_it_is_no_frame(self, narrate):
        narration = await narrate()
        samples = b"".join([samples async for samples in narration])
        assert samples == PAUSE.join(map(spoken, PIECES))
        assert narration.usage.output_tokens == len("".join(PIECES))

    async def test_within_a_sentence_there_is_none(self, narrate, pipeline):
        text = "A sentence that is cut at a comma, and at the end of a word where there is none of them"
        samples = b"".join([samples async for samples in await narrate(input=text)])
        assert [piece[-5:] for piece in submitted(pipeline)] == ["omma,", "re is", " them"]
        assert samples == spoken("".join(submitted(pipeline)))

    async def test_the_limit_of_frames_takes_no_pause_into_account(self, narrate, pipeline):
        most = len(PIECES[0]) + 4
        samples = b"".join([samples async for samples in await narrate(max_new_frames=most)])
        assert samples == spoken(PIECES[0]) + PAUSE + spoken(PIECES[1][:4])
        assert [stream.cancel_reason for stream in pipeline.streams] == [None, "limit", "limit"]

    async def test_an_answer_that_ends_with_a_piece_ends_without_one(self, narrate):
        samples = b"".join([samples async for samples in await narrate(max_new_frames=len(PIECES[0]))])
        assert samples == spoken(PIECES[0])

    async def test_the_next_piece_is_made_while_one_is_heard(self, narrate, pipeline):
        pipeline.refusals = [None, *[NotReady("starting")] * len(PIECES[0])]
        narration = await narrate()
        for _ in PIECES[0]:
            await anext(narration)
        assert submitted(pipeline) == PIECES[:1]
        assert await anext(narration) == PAUSE
        assert submitted(pipeline) == PIECES[:2]


class TestBundledVoice:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(served_model_name="robin")

    @pytest.mark.parametrize(
        ("language", "text"), [("auto", "five kilometers"), ("English", "five kilometers"), ("chinese", "5km")]
    )
    async def test_it_is_given_english_in_words(self, narrate, pipeline, language, text):
        await narrate(input="5km", language=language)
        assert submitted(pipeline) == [text]


class TestWrittenAsWords:
    """Digits are many times as long as words."""

    @pytest.fixture
    def settings(self, settings) -> Settings:
        return settings.model_copy(update={"text": TextOptions(normalise="on")})

    async def test_what_becomes_too_long_is_refused(self, narrate, pipeline, settings):
        digits = "1234567890" * (settings.max_input_chars // 10)
        with pytest.raises(
            RequestError, match=r"input has \d+ characters when it is written as words, more than 8192"
        ) as no:
            await narrate(input=digits)
        assert no.value.param == "input"
        assert pipeline.streams == []

    async def test_a_long_text_with_some_numbers_is_not(self, narrate, settings):
        sentence = "In 2026 there were 1,250 of them, which is 12% more than one would have thought. "
        await narrate(input=sentence * (settings.max_input_chars // len(sentence)))


async def test_waiting_for_samples_can_be_cancelled(narrate, pipeline):
    pipeline.gate = asyncio.Semaphore(0)
    with pytest.raises(TimeoutError), await narrate() as narration:
        async with asyncio.timeout(0.05):
            await anext(narration)
    assert pipeline.streams[0].cancelled
