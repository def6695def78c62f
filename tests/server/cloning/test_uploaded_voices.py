"""Recordings to speak like as uploaded voices; what is refused, under which name, and what a folder keeps."""

import asyncio
import json
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
from duotone.stages.errors import ConfigurationError

from ..fake_pipeline import plan_of
from .asking import SPEECH, VOICES, data_url, heard, refusal, upload
from .fake_listener import FakeListener


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
