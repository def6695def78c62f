"""Recordings to speak like in a request: sent with it or fetched; what is refused, and under which name."""

import asyncio
import base64
import json

import httpx
import pytest

from duotone.stages.errors import StageFailed

from .asking import SPEECH, data_url, heard, refusal


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
