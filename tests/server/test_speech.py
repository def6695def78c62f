"""POST /v1/audio/speech in process: what goes into the pipeline, and the shapes of answers."""

import base64
import json

import httpx
import pytest

from duotone.server.app import create_app
from duotone.server.catalog import Catalog
from duotone.server.config import Settings
from duotone.server.narration import piece_seed
from duotone.stages.errors import NotReady, QueueFull, RequestError, StageFailed
from duotone.stages.pipeline import PipelineOptions, TalkerOptions
from duotone.stages.types import SAMPLES_PER_FRAME, PromptPlan

from .decoding import assert_lasts, decoded
from .fake_pipeline import plan_of, spoken, sung_frame

SPEECH = "/v1/audio/speech"
TWO_PIECES = "The first sentence of the text. The second one that follows."
PIECES = ["The first sentence of the text.", "The second one that follows."]


MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


@pytest.mark.parametrize(("format", "media_type"), MEDIA_TYPES.items())
@pytest.mark.parametrize("stream", [True, False])
async def test_headers_say_what_the_body_is(client, ask, format, media_type, stream):
    answer = await client.post(SPEECH, json=ask(response_format=format, stream=stream))
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-audio-sample-rate"] == "24000"
    assert answer.headers["x-audio-channels"] == "1"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-store"
    assert ("content-length" in answer.headers) != stream


async def test_an_absent_format_is_mp3(client, ask):
    answer = await client.post(SPEECH, json=ask())
    assert answer.headers["content-type"] == "audio/mpeg"
    assert_lasts(decoded(answer.content), "mp3", 6 * SAMPLES_PER_FRAME)


@pytest.mark.parametrize("format", MEDIA_TYPES)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_format_holds_the_whole_answer(client, ask, pipeline, format, stream):
    pipeline.frame = sung_frame
    answer = await client.post(SPEECH, json=ask(input=TWO_PIECES, response_format=format, stream=stream))
    samples = SAMPLES_PER_FRAME * len("".join(PIECES))
    if format == "pcm":
        assert len(answer.content) == 2 * samples
    else:
        assert_lasts(decoded(answer.content), format, samples, complete=not stream)
    if not stream:
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("stream", [True, False])
async def test_speed_divides_the_length(client, ask, stream):
    answer = await client.post(SPEECH, json=ask(response_format="pcm", stream=stream, speed=1.5))
    assert len(answer.content) == 2 * 6 * SAMPLES_PER_FRAME / 1.5


async def test_usage_counts_frames_as_they_were_made_whatever_the_speed(client, ask):
    answer = await client.post(SPEECH, json=ask(stream_format="sse", speed=2))
    assert events(answer.text)[-1]["usage"] == {"input_tokens": 7, "output_tokens": 6, "total_tokens": 13}


@pytest.mark.parametrize("stream", [True, False])
async def test_pcm_is_the_samples_alone(client, ask, stream):
    answer = await client.post(SPEECH, json=ask(response_format="pcm", stream=stream))
    assert answer.content == spoken("Hello.")


async def test_a_long_text_is_one_continuous_answer(client, ask, pipeline):
    answer = await client.post(SPEECH, json=ask(input=TWO_PIECES, response_format="pcm"))
    assert [stream.text for stream in pipeline.streams] == PIECES
    assert answer.content == spoken("".join(PIECES))


async def test_choices_reach_the_prompt_as_the_model_spells_them(client, ask, pipeline):
    fields = {"voice": "VIVIAN", "language": "English", "instructions": "Whisper.", "non_streaming_mode": False}
    await client.post(SPEECH, json=ask(**fields))
    assert pipeline.streams[0].choices == ["english", "Vivian", "Whisper.", "False", "None"]


async def test_choices_have_defaults(client, pipeline):
    await client.post(SPEECH, json={"model": "robin", "input": "Hello.", "instructions": " "})
    assert pipeline.streams[0].choices == ["auto", "Vivian", "None", "None", "None"]


async def test_sampling_fields_stand_over_the_checkpoint_s_own(client, ask, pipeline):
    fields = {"seed": 11, "top_p": 0.5, "repetition_penalty": 1.2, "min_new_frames": 3, "max_new_frames": 9}
    await client.post(SPEECH, json=ask(**fields))
    sampling = pipeline.streams[0].sampling
    assert (sampling.seed, sampling.temperature, sampling.top_k, sampling.top_p) == (11, 0.8, 40, 0.5)
    assert (sampling.repetition_penalty, sampling.min_new_frames, sampling.max_new_frames) == (1.2, 3, 9)
    assert sampling.subtalker_temperature == 0.9


async def test_temperature_0_is_greedy_in_the_code_predictor_too(client, ask, pipeline):
    await client.post(SPEECH, json=ask(temperature=0))
    assert (pipeline.streams[0].sampling.temperature, pipeline.streams[0].sampling.subtalker_temperature) == (0, 0)


async def test_without_a_limit_the_text_s_length_gives_one(client, ask, pipeline):
    await client.post(SPEECH, json=ask(input="Hello."))
    assert pipeline.streams[0].sampling.max_new_frames == 50 + 8 * len("Hello.")


class TestShortContext:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(pipeline=PipelineOptions(talker=TalkerOptions(max_positions=64)))

    async def test_that_limit_leaves_room_for_the_prompt(self, client, ask, pipeline):
        await client.post(SPEECH, json=ask(input="a" * 170))
        positions = 170 * 4 // 68  # the fake's plans hold four bytes a character, a row has 68
        assert pipeline.streams[0].sampling.max_new_frames == 64 - positions

    async def test_more_frames_at_least_than_fit_are_refused_by_that_name(self, client, ask):
        answer = await client.post(SPEECH, json=ask(min_new_frames=65))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_new_frames")

    async def test_instructions_that_leave_no_room_are_refused_by_that_name(
        self, settings, model, pipeline, metrics, ask
    ):
        def plan(text: str, instruction: str | None, **choices: object) -> PromptPlan:
            return plan_of((instruction or "") + text, instruction=instruction, **choices)

        app = create_app(settings, Catalog(settings, model), plan, pipeline, metrics, pytest.fail)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            room_chars = 64 * 68 // 4 - len("Hello.")
            answer = await client.post(SPEECH, json=ask(instructions="a" * room_chars))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "instructions")
            answer = await client.post(SPEECH, json=ask(instructions="a" * (room_chars - 17)))
            assert answer.status_code == 200


async def test_a_least_number_of_frames_lifts_the_limit_that_the_text_gives(client, ask, pipeline):
    await client.post(SPEECH, json=ask(min_new_frames=500))
    assert (pipeline.streams[0].sampling.min_new_frames, pipeline.streams[0].sampling.max_new_frames) == (500, 500)


async def test_max_new_frames_1_lowers_the_default_least(client, ask, pipeline):
    answer = await client.post(SPEECH, json=ask(max_new_frames=1, response_format="pcm"))
    assert pipeline.streams[0].sampling.min_new_frames == 1
    assert len(answer.content) == 2 * SAMPLES_PER_FRAME


async def test_max_new_frames_bounds_the_answer_over_all_pieces(client, ask, pipeline):
    most = len(PIECES[0]) + 4
    answer = await client.post(SPEECH, json=ask(input=TWO_PIECES, response_format="pcm", max_new_frames=most))
    assert answer.content == spoken(PIECES[0] + PIECES[1][:4])
    assert pipeline.streams[1].cancelled


async def test_a_seed_gives_every_piece_its_own(client, ask, pipeline):
    for _ in range(2):
        await client.post(SPEECH, json=ask(input=TWO_PIECES, seed=5))
    seeds = [stream.sampling.seed for stream in pipeline.streams]
    assert seeds == [5, piece_seed(5, 1)] * 2
    assert piece_seed(5, 1) not in (5, piece_seed(6, 1), piece_seed(5, 2))
    assert 0 <= piece_seed(5, 1) < 2**63


async def test_without_a_seed_no_two_requests_sound_the_same(client, ask, pipeline):
    for _ in range(2):
        await client.post(SPEECH, json=ask())
    first, second = (stream.sampling.seed for stream in pipeline.streams)
    assert first != second


def events(body: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


async def test_server_sent_events_carry_the_audio_and_then_the_usage(client, ask, pipeline):
    answer = await client.post(SPEECH, json=ask(input=TWO_PIECES, stream_format="sse", response_format="wav"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(answer.text)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert audio[:4] == b"RIFF"
    assert audio[44:] == spoken("".join(PIECES))
    frames = len("".join(PIECES))
    usage = {"input_tokens": 14, "output_tokens": frames, "total_tokens": 14 + frames}
    assert done == {"type": "speech.audio.done", "usage": usage}


@pytest.mark.parametrize("format", MEDIA_TYPES)
async def test_server_sent_events_carry_every_format(client, ask, pipeline, format):
    pipeline.frame = sung_frame
    answer = await client.post(SPEECH, json=ask(stream_format="sse", response_format=format))
    *deltas, done = events(answer.text)
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert all(delta["audio"] for delta in deltas)
    if format == "pcm":
        assert len(audio) == 2 * 6 * SAMPLES_PER_FRAME
    else:
        assert_lasts(decoded(audio), format, 6 * SAMPLES_PER_FRAME)
    assert done["usage"]["output_tokens"] == 6


async def test_a_failure_within_server_sent_events_is_the_last_event(client, ask, pipeline):
    pipeline.fail_after, pipeline.failure = 3, StageFailed("the talker died")
    answer = await client.post(SPEECH, json=ask(stream_format="sse"))
    assert answer.text.count("event: error\n") == 1
    last = events(answer.text)[-1]
    assert last["error"]["message"] == "the talker died"
    assert pipeline.streams[0].cancelled


async def test_one_complete_file_cannot_come_as_events(client, ask):
    answer = await client.post(SPEECH, json=ask(stream_format="sse", stream=False))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status", "type", "param", "code"),
    [
        (RequestError("too long", "input"), 400, "invalid_request_error", "input", "invalid_value"),
        (QueueFull("256 are waiting", retry_after_s=3), 429, "rate_limit_error", None, "queue_full"),
        (NotReady("starting"), 503, "server_error", None, "not_ready"),
    ],
)
async def test_what_the_pipeline_refuses_is_answered(client, ask, pipeline, stream, refusal, status, type, param, code):
    pipeline.refusals = [refusal]
    answer = await client.post(SPEECH, json=ask(stream=stream))
    error = {"message": str(refusal), "type": type, "param": param, "code": code}
    assert (answer.status_code, answer.json()) == (status, {"error": error})


async def test_a_full_queue_says_when_to_come_again(client, ask, pipeline):
    pipeline.refusals = [QueueFull("256 are waiting", retry_after_s=3)]
    assert (await client.post(SPEECH, json=ask())).headers["retry-after"] == "3"


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream_format": "sse"}])
async def test_a_failure_before_the_first_byte_is_a_real_error(client, ask, pipeline, fields):
    pipeline.fail_after, pipeline.failure = 0, StageFailed("the talker died")
    answer = await client.post(SPEECH, json=ask(**fields))
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the talker died"
    assert pipeline.streams[0].cancelled


async def test_a_complete_answer_fails_as_a_whole(client, ask, pipeline):
    pipeline.fail_after, pipeline.failure = 3, StageFailed("the talker died")
    answer = await client.post(SPEECH, json=ask(stream=False))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pipeline_failed")


async def test_an_unexpected_failure_tells_nothing_of_itself(client, ask, pipeline):
    pipeline.fail_after, pipeline.failure = 0, ValueError("secret")
    answer = await client.post(SPEECH, json=ask())
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"].startswith("req_")


async def test_the_pipeline_knows_requests_by_the_client_s_id(client, ask, pipeline):
    await client.post(SPEECH, json=ask(input=TWO_PIECES), headers={"X-Request-Id": "mine-1"})
    assert pipeline.request_ids == ["mine-1", "mine-1"]
