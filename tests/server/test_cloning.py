"""Recordings to speak like: in a request or as uploaded voices; what is refused, and under which name."""

import asyncio
import base64
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from websockets.asyncio.client import connect

from duotone.server.app import create_app
from duotone.server.catalog import OPENAI_VOICES, Catalog
from duotone.server.uploaded_voices import UploadedVoices
from duotone.stages.cloning.config import CloningOptions
from duotone.stages.cloning.messages import Recording
from duotone.stages.errors import ConfigurationError, RequestError, StageFailed

from .fake_pipeline import plan_of

SPEECH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"


@dataclass
class FakeListener:
    """Hears one number in a recording, its length, which becomes the x-vector; nothing in an empty one."""

    life: list[str] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    failure: Exception | None = None
    gate: asyncio.Event | None = None

    async def start(self) -> None:
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")

    async def listen(self, audio: bytes, field: str) -> Recording:
        self.heard.append(audio)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if not audio:
            raise RequestError("the recording cannot be used: it is silent", field)
        return Recording(np.array([len(audio)], "<f4").tobytes(), np.zeros((2, 16), "<i2").tobytes())


@pytest.fixture
def model(model):
    return replace(model, voices=(), takes_instructions=False)


@pytest.fixture
def listener() -> FakeListener:
    return FakeListener()


@pytest.fixture
def cloning_options() -> CloningOptions:
    return CloningOptions(allowed_hosts=("recordings.example",), max_audio_bytes=2000, max_voices=3)


@pytest.fixture
def settings(settings, cloning_options):
    return settings.model_copy(update={"cloning": cloning_options})


@pytest.fixture
def app(settings, model, pipeline, metrics, start_failures, listener):
    catalog = Catalog(settings, model)
    return create_app(settings, catalog, plan_of, pipeline, metrics, start_failures.append, listener)


def data_url(audio: bytes, type: str = "audio/wav") -> str:
    return f"data:{type};base64,{base64.b64encode(audio).decode()}"


async def upload(client, name="Ann", audio=b"sound", **fields) -> httpx.Response:
    return await client.post(VOICES, data={"name": name, **fields}, files={"audio_sample": ("a.wav", audio)})


async def refusal(answer: httpx.Response, status: int = 400) -> tuple[str | None, str]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def heard(pipeline) -> str:
    """What the last prompt held of a recording: the x-vector's number, and the transcript."""
    return pipeline.streams[-1].choices[4]


class TestRefAudio:
    async def test_its_voice_and_words_are_in_the_prompt_of_every_piece(self, client, ask, pipeline, listener):
        text = "The first sentence is a long one. And so is the second."
        answer = await client.post(SPEECH, json=ask(input=text, ref_audio=data_url(b"12345"), ref_text="I said so."))
        assert answer.status_code == 200
        assert [stream.choices[4] for stream in pipeline.streams] == ["5 I said so."] * 2
        assert listener.heard == [b"12345"]

    async def test_its_x_vector_alone_needs_no_words(self, client, ask, pipeline):
        for words in ({}, {"ref_text": "Not used."}):
            answer = await client.post(SPEECH, json=ask(ref_audio=data_url(b"123"), x_vector_only=True, **words))
            assert answer.status_code == 200
            assert heard(pipeline) == "3 None"

    @pytest.mark.parametrize("words", [{}, {"ref_text": " \n"}, {"ref_text": None, "x_vector_only": False}])
    async def test_its_words_are_needed_otherwise(self, client, ask, listener, words):
        param, message = await refusal(await client.post(SPEECH, json=ask(ref_audio=data_url(b"123"), **words)))
        assert param == "ref_text"
        assert "x_vector_only" in message
        assert listener.heard == []

    @pytest.mark.parametrize("header", ["data:;base64,", "DATA:Audio/WAV;codecs=1;base64,", "data:text/plain;base64,"])
    async def test_what_the_data_url_calls_itself_does_not_matter(self, client, ask, listener, header):
        asked = ask(ref_audio=header + base64.b64encode(b"123").decode(), x_vector_only=True)
        assert (await client.post(SPEECH, json=asked)).status_code == 200
        assert listener.heard == [b"123"]

    @pytest.mark.parametrize(
        ("ref_audio", "reason"),
        [
            ("data:audio/wav;base64,?", "base64"),
            ("data:audio/wav;base64,QQ", "base64"),
            ("data:audio/wav;base64,é", "base64"),
            ("data:audio/wav,abc", "expected a data URL"),
            ("", "expected a data URL"),
            ("UklGRg==", "expected a data URL"),
            ("file:///etc/passwd", "expected a data URL"),
            ("/etc/passwd", "expected a data URL"),
            ("ftp://recordings.example/a.wav", "expected a data URL"),
            ("http://169.254.169.254/latest/meta-data", "nothing is fetched from '169.254.169.254'"),
            ("http://recordings.example.evil.example/a.wav", "nothing is fetched from"),
            ("http://recordings.example@evil.example/a.wav", "nothing is fetched from 'evil.example'"),
            ("http://evil.example#@recordings.example/a.wav", "nothing is fetched from 'evil.example'"),
            ("http://[::1", "is no URL"),
            ("http://", "nothing is fetched from ''"),
            (5, "valid string"),
            ("\ud800", "surrogate"),
        ],
    )
    async def test_what_is_no_recording_is_refused(self, client, ask, listener, ref_audio, reason):
        body = json.dumps(ask(ref_audio=ref_audio, x_vector_only=True))
        param, message = await refusal(await client.post(SPEECH, content=body))
        assert param == "ref_audio"
        assert reason in message
        assert listener.heard == []

    async def test_the_listener_s_refusal_names_it(self, client, ask):
        asked = ask(ref_audio=data_url(b""), x_vector_only=True)
        assert await refusal(await client.post(SPEECH, json=asked)) == (
            "ref_audio",
            "the recording cannot be used: it is silent",
        )

    async def test_a_listener_that_breaks_is_the_server_s_fault(self, client, ask, listener):
        listener.failure = StageFailed("cloning: the process died")
        answer = await client.post(SPEECH, json=ask(ref_audio=data_url(b"1"), x_vector_only=True))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pipeline_failed")

    async def test_an_unknown_model_is_told_before_anything_is_heard(self, client, ask, listener):
        asked = ask(model="nope", ref_audio=data_url(b"1"), x_vector_only=True)
        assert (await client.post(SPEECH, json=asked)).status_code == 404
        assert listener.heard == []

    async def test_a_long_transcript_is_refused(self, client, ask, settings):
        asked = ask(ref_audio=data_url(b"1"), ref_text="a" * (settings.max_input_chars + 1))
        param, message = await refusal(await client.post(SPEECH, json=asked))
        assert (param, "4097 characters" in message) == ("ref_text", True)

    async def test_a_recording_may_be_larger_than_other_bodies(self, client, ask, settings):
        small = settings.http.model_copy(update={"max_body_bytes": 1024})
        assert small.max_body_bytes < len(data_url(bytes(2000)))
        asked = ask(ref_audio=data_url(bytes(2000)), x_vector_only=True)
        assert (await client.post(SPEECH, json=asked)).status_code == 200

    async def test_who_leaves_meanwhile_has_nothing_spoken(self, live, ask, listener, pipeline):
        listener.gate = asyncio.Event()
        with pytest.raises(httpx.ReadTimeout):
            await live.post(SPEECH, json=ask(ref_audio=data_url(b"1"), x_vector_only=True), timeout=0.3)
        await asyncio.sleep(0.1)
        listener.gate.set()
        await asyncio.sleep(0.1)
        assert listener.heard == [b"1"]
        assert pipeline.streams == []


class TestFetching:
    @pytest.fixture
    def web(self, monkeypatch):
        """`web(handler)` answers what the server fetches; it returns the URLs asked for."""
        asked = []

        def install(handler):
            def answer(request: httpx.Request) -> httpx.Response:
                asked.append(str(request.url))
                return handler(request)

            real = httpx.AsyncClient
            transport = httpx.MockTransport(answer)
            monkeypatch.setattr("duotone.server.cloning.httpx.AsyncClient", lambda: real(transport=transport))
            return asked

        return install

    async def test_an_allowed_host_s_recording_is_fetched(self, client, ask, web, listener):
        asked = web(lambda _: httpx.Response(200, content=b"from afar"))
        url = "https://recordings.example/a.wav?x=1"
        assert (await client.post(SPEECH, json=ask(ref_audio=url, x_vector_only=True))).status_code == 200
        assert (asked, listener.heard) == ([url], [b"from afar"])

    async def test_no_redirect_is_followed(self, client, ask, web, listener):
        asked = web(lambda _: httpx.Response(302, headers={"Location": "http://127.0.0.1/secret"}))
        answer = await client.post(SPEECH, json=ask(ref_audio="http://recordings.example/a", x_vector_only=True))
        assert await refusal(answer) == ("ref_audio", "recordings.example answers 302")
        assert len(asked) == 1
        assert listener.heard == []

    async def test_a_host_that_fails_is_told(self, client, ask, web):
        def broken(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("no route")

        web(broken)
        answer = await client.post(SPEECH, json=ask(ref_audio="http://recordings.example/a", x_vector_only=True))
        assert await refusal(answer) == ("ref_audio", "cannot be fetched: ConnectError")

    async def test_no_more_is_read_than_a_recording_may_have(self, client, ask, web, listener):
        made_bytes = 0

        async def endless():
            nonlocal made_bytes
            while True:
                made_bytes += 1000
                yield bytes(1000)

        web(lambda _: httpx.Response(200, content=endless()))
        await client.post(SPEECH, json=ask(ref_audio="http://recordings.example/a", x_vector_only=True))
        assert made_bytes <= 4000
        assert 2000 < len(listener.heard[0]) <= 4000


class TestUploadedVoices:
    async def test_one_is_listed_and_spoken_with_under_its_name_in_any_case(self, client, ask, pipeline, listener):
        answer = await upload(client, "Ann", b"12345", ref_text="I am Ann.")
        assert answer.status_code == 200
        voice = answer.json()
        assert (voice["id"], voice["name"], voice["object"], voice["type"]) == (
            "Ann",
            "Ann",
            "audio.voice",
            "audio_sample",
        )
        assert voice["created_at"] > 1_700_000_000
        listed = (await client.get(VOICES)).json()["voices"]
        assert listed[0] == {"id": "Ann", "name": "Ann", "voice": "Ann"}
        for name in ("Ann", "ANN", {"id": "ann"}):
            assert (await client.post(SPEECH, json=ask(voice=name))).status_code == 200
            assert heard(pipeline) == "5 I am Ann."
        assert listener.heard == [b"12345"]

    async def test_without_words_it_speaks_by_its_x_vector(self, client, ask, pipeline):
        await upload(client, "Ann", b"123")
        assert (await client.post(SPEECH, json=ask(voice="Ann"))).status_code == 200
        assert heard(pipeline) == "3 None"
        param, _ = await refusal(await client.post(SPEECH, json=ask(voice="Ann", x_vector_only=False)))
        assert param == "x_vector_only"

    async def test_with_words_it_may_still_be_asked_for_its_x_vector(self, client, ask, pipeline):
        await upload(client, "Ann", b"123", ref_text="I am Ann.")
        assert (await client.post(SPEECH, json=ask(voice="Ann", x_vector_only=True))).status_code == 200
        assert heard(pipeline) == "3 None"

    async def test_the_first_stands_behind_the_names_that_every_model_answers_to(self, client, ask, pipeline):
        for name, audio in (("Ann", b"1"), ("Bob", b"12"), ("nova", b"123")):
            assert (await upload(client, name, audio)).status_code == 200
        listed = {card["id"]: card["voice"] for card in (await client.get(VOICES)).json()["voices"]}
        assert set(listed) == {"Ann", "Bob", "default", *OPENAI_VOICES}
        for name, number in (("default", 1), ("alloy", 1), ("bob", 2), ("nova", 3)):
            assert (await client.post(SPEECH, json=ask(voice=name))).status_code == 200
            assert heard(pipeline) == f"{number} None"

    async def test_an_unknown_voice_is_refused_with_the_known_ones(self, client, ask):
        param, message = await refusal(await client.post(SPEECH, json=ask(voice="alloy")))
        assert (param, "recording" in message) == ("ref_audio", True)
        await upload(client, "Ann")
        param, message = await refusal(await client.post(SPEECH, json=ask(voice="Zed")))
        assert (param, "Ann, default" in message) == ("voice", True)

    @pytest.mark.parametrize(
        ("fields", "param"), [({"ref_text": "Words."}, "ref_text"), ({"ref_audio": data_url(b"1")}, "ref_audio")]
    )
    async def test_one_has_its_own_recording_and_words(self, client, ask, fields, param):
        await upload(client, "Ann")
        assert (await refusal(await client.post(SPEECH, json=ask(voice="Ann", **fields))))[0] == param

    async def test_one_that_is_deleted_is_gone(self, client, ask):
        await upload(client, "Ann Smith")
        answer = await client.delete(f"{VOICES}/ann smith")
        assert answer.json() == {"id": "Ann Smith", "object": "audio.voice.deleted", "deleted": True}
        answer = await client.delete(f"{VOICES}/ann smith")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "voice_not_found")
        assert (await client.post(SPEECH, json=ask(voice="Ann Smith"))).status_code == 400
        assert (await upload(client, "Ann Smith")).status_code == 200

    async def test_a_name_is_taken_once_and_there_is_a_limit(self, client, listener):
        await upload(client, "Ann")
        param, message = await refusal(await upload(client, "ANN"))
        assert (param, "already" in message) == ("name", True)
        assert len(listener.heard) == 1
        await upload(client, "Bob")
        await upload(client, "Cid")
        assert (await refusal(await upload(client, "Dan")))[0] == "name"

    async def test_of_two_that_take_a_name_at_once_one_gets_it(self, client, listener):
        listener.gate = asyncio.Event()
        uploads = [asyncio.create_task(upload(client, "Ann", audio)) for audio in (b"1", b"2")]
        while len(listener.heard) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        listener.gate.set()
        assert sorted([answer.status_code for answer in await asyncio.gather(*uploads)]) == [200, 400]

    @pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "x" * 65, "../x", "-", "a\x00"])
    async def test_a_name_that_could_not_be_asked_for_is_refused(self, client, listener, name):
        assert (await refusal(await upload(client, name)))[0] == "name"
        assert listener.heard == []

    @pytest.mark.parametrize("name", ["Ann", "Dr. O'Neil-Smith", "Żaneta", "小明", "voice_1"])
    async def test_names_of_any_script_work(self, client, ask, name):
        assert (await upload(client, name)).status_code == 200
        assert (await client.post(SPEECH, json=ask(voice=name))).status_code == 200
        assert (await client.delete(f"{VOICES}/{name}")).status_code == 200

    async def test_what_is_missing_or_silent_is_named(self, client):
        assert (await refusal(await client.post(VOICES, data={"name": "Ann"}, files={"x": b"1"})))[0] == "audio_sample"
        assert (await refusal(await client.post(VOICES, files={"audio_sample": b"1"})))[0] == "name"
        assert (await refusal(await client.post(VOICES, data={"name": "Ann", "audio_sample": "text"})))[
            0
        ] == "audio_sample"
        assert (await refusal(await upload(client, "Ann", b"")))[0] == "audio_sample"

    async def test_a_broken_form_is_told(self, client):
        for content, type in ((b"x", "multipart/form-data"), (b"x", "multipart/form-data; boundary=y")):
            answer = await client.post(VOICES, content=content, headers={"Content-Type": type})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] in ("invalid_body", "invalid_value")

    async def test_openai_s_client_uploads_speaks_and_deletes(self, port, pipeline):
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            sample = ("ann.wav", b"12345", "audio/wav")
            voice = await client.audio.voices.create(name="Ann", audio_sample=sample, consent="cons_1")
            assert (voice.name, voice.object, voice.type) == ("Ann", "audio.voice", "audio_sample")
            speech = await client.audio.speech.create(model="tts-1", voice={"id": voice.id}, input="Hello.")
            assert speech.content
            assert heard(pipeline) == "5 None"
            deleted = await client.audio.voices.delete(voice.id)
            assert (deleted.deleted, deleted.object) == (True, "audio.voice.deleted")

    async def test_a_live_session_speaks_with_one(self, port, client, pipeline):
        await upload(client, "Ann", b"12345")
        async with connect(f"ws://127.0.0.1:{port}{SPEECH}/stream", proxy=None) as socket:
            await socket.send(json.dumps({"type": "session", "model": "tts-1", "voice": "Ann"}))
            await socket.send(json.dumps({"type": "text", "text": "Hello."}))
            await socket.send(json.dumps({"type": "end"}))
            assert [message async for message in socket]
        assert heard(pipeline) == "5 None"

    async def test_a_live_session_brings_a_recording_as_large_as_a_request_s(self, port, pipeline, settings):
        recording = bytes(2 * settings.http.live_max_message_bytes)
        session = {"type": "session", "model": "tts-1", "ref_audio": data_url(recording), "ref_text": "So it is."}
        async with connect(f"ws://127.0.0.1:{port}{SPEECH}/stream", proxy=None) as socket:
            for message in (session, {"type": "text", "text": "Hello."}, {"type": "end"}):
                await socket.send(json.dumps(message))
            assert [message async for message in socket]
        assert heard(pipeline) == f"{len(recording)} So it is."


class TestVoicesInAFolder:
    @pytest.fixture
    def cloning_options(self, tmp_path) -> CloningOptions:
        return CloningOptions(voices_dir=tmp_path / "voices")

    async def test_they_outlive_the_server(self, client, ask, settings, model, pipeline, metrics):
        await upload(client, "Ann", b"12345", ref_text="I am Ann.")
        await upload(client, "Żaneta", b"1")
        await client.delete(f"{VOICES}/Żaneta")
        again = create_app(settings, Catalog(settings, model), plan_of, pipeline, metrics, pytest.fail, FakeListener())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(again), base_url="http://test") as client:
            assert [card["id"] for card in (await client.get(VOICES)).json()["voices"]][:2] == ["Ann", "default"]
            assert (await client.post(SPEECH, json=ask(voice="ann"))).status_code == 200
        assert heard(pipeline) == "5 I am Ann."

    async def test_a_file_that_holds_none_is_named_and_left_out(self, client, settings, caplog):
        await upload(client, "Ann")
        folder = settings.cloning.voices_dir
        (whole,) = folder.iterdir()
        (folder / "nonsense.voice").write_bytes(b"nonsense")
        (folder / "truncated.voice").write_bytes(whole.read_bytes()[:-1])
        x_vector, nan = np.array([5], "<f4").tobytes(), np.array([np.nan], "<f4").tobytes()
        (folder / "poisoned.voice").write_bytes(whole.read_bytes().replace(x_vector, nan))
        assert [voice.name for voice in UploadedVoices(settings.cloning)] == ["Ann"]
        told = [Path(record.args[0]).stem for record in caplog.records if "left out" in record.message]
        assert sorted(told) == ["nonsense", "poisoned", "truncated"]

    async def test_a_write_that_fails_leaves_no_file_behind_that_is_read(self, client, settings, monkeypatch):
        def write_half(path: Path, content: bytes) -> None:
            with path.open("wb") as file:
                file.write(content[: len(content) // 2])
            raise OSError("no space left")

        monkeypatch.setattr(Path, "write_bytes", write_half)
        assert (await upload(client, "Ann")).status_code == 500
        assert not list(settings.cloning.voices_dir.glob("*.voice"))

    def test_a_folder_that_is_none_is_told_at_the_start(self, settings, model, pipeline, metrics):
        settings.cloning.voices_dir.write_bytes(b"")
        with pytest.raises(ConfigurationError, match=r"cloning\.voices_dir: .*voices"):
            create_app(settings, Catalog(settings, model), plan_of, pipeline, metrics, pytest.fail, FakeListener())


class TestAModelThatDoesNotClone:
    @pytest.fixture
    def listener(self) -> None:
        return None

    @pytest.mark.parametrize(
        ("field", "value"), [("ref_audio", data_url(b"1")), ("ref_text", "Words."), ("x_vector_only", True)]
    )
    async def test_it_refuses_each_field_by_its_name(self, client, ask, field, value, pipeline):
        param, message = await refusal(await client.post(SPEECH, json=ask(**{field: value})))
        assert (param, message) == (field, "the model 'robin' does not clone voices")
        assert pipeline.streams == []

    async def test_it_takes_absent_ones(self, client, ask):
        asked = ask(ref_audio=None, ref_text=" ", x_vector_only=None)
        assert (await client.post(SPEECH, json=asked)).status_code == 200

    async def test_it_refuses_uploads(self, client):
        assert (await refusal(await upload(client)))[0] == "audio_sample"
        assert (await client.delete(f"{VOICES}/Ann")).status_code == 404


async def test_the_listener_lives_as_long_as_the_application(app, pipeline, listener):
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
        assert listener.life == ["start"]
    assert listener.life == ["start", "stop"]
    assert pipeline.life[-1] == "stop 10"


async def test_a_listener_that_cannot_start_ends_the_start(app, pipeline, listener, start_failures, monkeypatch):
    failure = ConfigurationError("cloning: a tensor is missing")

    async def fail() -> None:
        raise failure

    monkeypatch.setattr(listener, "start", fail)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
    assert start_failures == [failure]
