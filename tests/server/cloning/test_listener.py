"""The listener lives as long as the application; a model without one refuses what it would hear."""

import asyncio

import pytest

from duotone.stages.errors import ConfigurationError

from .asking import SPEECH, VOICES, data_url, refusal, upload


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
