"""Names: what is listed, and that what is listed works."""

from dataclasses import replace

import pytest

from duotone.server.catalog import OPENAI_VOICES, Catalog
from duotone.server.config import Settings
from duotone.stages.errors import ConfigurationError, RequestError


async def test_models_are_the_served_one_and_its_aliases(client):
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["robin", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert {(card["object"], card["owned_by"]) for card in listed["data"]} == {("model", "duotone")}
    assert all(card["created"] > 1_700_000_000 for card in listed["data"])


async def test_every_model_of_the_list_is_found_and_served(client, ask):
    for card in (await client.get("/v1/models")).json()["data"]:
        assert (await client.get(f"/v1/models/{card['id']}")).json() == card
        assert (await client.post("/v1/audio/speech", json=ask(model=card["id"]))).status_code == 200


async def test_audio_models_are_the_same_names(client):
    expected = {"models": [{"id": name} for name in ("robin", "tts-1", "tts-1-hd", "gpt-4o-mini-tts")]}
    assert (await client.get("/v1/audio/models")).json() == expected


async def test_voices_are_the_model_s_own_then_the_others(client):
    listed = (await client.get("/v1/audio/voices?model=anything&x=1")).json()["voices"]
    assert [card["id"] for card in listed] == ["Vivian", "ryan", "default", *OPENAI_VOICES]
    assert all(card["name"] == card["id"] for card in listed)


async def test_openai_s_voices_take_the_model_s_in_turn(client):
    listed = (await client.get("/v1/audio/voices")).json()["voices"]
    behind = {card["id"]: card["voice"] for card in listed}
    assert (behind["default"], behind["alloy"], behind["ash"], behind["ballad"]) == (
        "Vivian",
        "Vivian",
        "ryan",
        "Vivian",
    )


async def test_every_voice_of_the_list_speaks_as_listed(client, ask, pipeline):
    for card in (await client.get("/v1/audio/voices")).json()["voices"]:
        assert (await client.post("/v1/audio/speech", json=ask(voice=card["id"]))).status_code == 200
        assert pipeline.streams[-1].choices[1] == card["voice"]


def test_voice_aliases_stand_over_openai_s(model):
    catalog = Catalog(Settings(voice_aliases={"Alloy": "RYAN", "narrator": "Vivian"}), model)
    assert (catalog.voice("alloy"), catalog.voice("NARRATOR"), catalog.voice("ash")) == ("ryan", "Vivian", "ryan")


def test_the_model_s_own_voice_stands_over_an_alias(model):
    own = replace(model, voices=("alloy", "ash2"))
    catalog = Catalog(Settings(voice_aliases={"alloy": "ash2"}), own)
    assert catalog.voice("alloy") == "alloy"
    assert [card.id for card in catalog.voice_cards()].count("alloy") == 1


def test_a_voice_alias_that_leads_nowhere_is_an_error_at_start(model):
    with pytest.raises(ConfigurationError, match=r"voice_aliases\.alloy: .*'nobody'.*Vivian, ryan"):
        Catalog(Settings(voice_aliases={"alloy": "nobody"}), model)


def test_a_model_without_voices_accepts_any_but_none(model):
    catalog = Catalog(Settings(), replace(model, voices=()))
    assert catalog.voice("whoever") is None
    assert [card.id for card in catalog.voice_cards()] == ["default", *OPENAI_VOICES]
    with pytest.raises(RequestError):
        catalog.voice("")


def test_instructions_are_refused_where_they_would_be_ignored(model):
    catalog = Catalog(Settings(), replace(model, takes_instructions=False))
    assert catalog.instructions("  ") is None
    with pytest.raises(RequestError, match="does not follow instructions") as refused:
        catalog.instructions("Whisper.")
    assert refused.value.param == "instructions"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(model="/a/lark/"), "lark"),
        (Settings(model="Qwen/Qwen3-TTS"), "Qwen3-TTS"),
        (Settings(model="/a/lark", served_model_name="Qwen/Qwen3-TTS"), "Qwen/Qwen3-TTS"),
    ],
)
def test_the_served_name_is_the_last_part_unless_it_is_set(model, settings, name):
    assert Catalog(settings, model).name == name


class TestNameWithASlash:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(served_model_name="Qwen/Qwen3-TTS")

    async def test_it_is_found(self, client):
        assert (await client.get("/v1/models/Qwen/Qwen3-TTS")).json()["id"] == "Qwen/Qwen3-TTS"
