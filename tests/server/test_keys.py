"""API keys: where they come from, what they lock and what they leave open, and that they show nowhere."""

import logging

import httpx
import pytest

from duotone.server.app import create_app
from duotone.server.catalog import Catalog
from duotone.server.config import HttpOptions, Settings, load_settings
from duotone.server.keys import ApiKeys
from duotone.stages.errors import ConfigurationError

from .fake_pipeline import FakePipeline, FakeProfiling, plan_of

SPEECH = "/v1/audio/speech"
FIRST, SECOND = "sk-first-7c1f", "sk-zweiter-ß"


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": f"Bearer {key}".encode()}


@pytest.fixture
def settings(tmp_path) -> Settings:
    file = tmp_path / "keys"
    file.write_text(f"# for the kitchen\n\n  {SECOND}  \n")
    return Settings(
        model="/models/robin",
        http=HttpOptions(cors_origins=("http://page.example",), api_keys=(FIRST,), api_keys_file=file),
    )


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline(profiling=FakeProfiling(stages=("talker",)))


@pytest.mark.parametrize("key", [FIRST, SECOND])
async def test_each_key_opens(client, ask, key):
    assert (await client.post(SPEECH, json=ask(), headers=bearer(key))).status_code == 200


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
async def test_the_scheme_may_be_written_as_it_likes(client, ask, scheme):
    answer = await client.post(SPEECH, json=ask(), headers={"Authorization": f"{scheme}  {FIRST}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        FIRST.encode(),
        f"Basic {FIRST}".encode(),
        f"Bearer {FIRST}x".encode(),
        f"Bearer {FIRST[:-1]}".encode(),
        f"Bearer {FIRST} {SECOND}".encode(),
        f"Bearer {FIRST.upper()}".encode(),
        f"Bearer {SECOND}".encode("latin-1"),
        b"Bearer # for the kitchen",
        b"Bearer \xff\xfe",
    ],
)
async def test_anything_else_is_refused_before_any_work(client, ask, pipeline, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await client.post(SPEECH, json=ask(), headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert error["message"]
    assert pipeline.streams == []


async def test_a_stranger_learns_nothing_of_a_body_s_faults(client):
    for content in (b"{", b" " * (2 << 20), b'{"model": "nope", "input": ""}'):
        assert (await client.post(SPEECH, content=content)).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", "/v1/models/robin", "/v1/audio/voices", "/v1/audio/models", "/health", "/live", "/metrics"),
        *("/", "/page.js", "/docs", "/openapi.json"),
    ],
)
async def test_reading_needs_no_key(client, path):
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/start_profile"),
        ("POST", "/stop_profile"),
        ("POST", "/v1/audio/voices"),
        ("DELETE", "/v1/audio/voices/me"),
        ("POST", "/nothing/here"),
    ],
)
async def test_all_else_needs_one(client, pipeline, method, path):
    assert (await client.request(method, path)).status_code == 401
    assert pipeline.profiling.asked == []


async def test_profiling_opens_with_a_key(client):
    assert (await client.post("/start_profile", headers=bearer(FIRST))).status_code == 200


async def test_unknown_paths_stay_unknown(client):
    for path in ("/v1/readyz", "/v1/test"):
        assert (await client.get(path)).status_code == 404


async def test_a_page_s_preflight_needs_none_and_the_page_reads_the_refusal(client, ask):
    origin = {"Origin": "http://page.example"}
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert (await client.options(SPEECH, headers=origin | wanted)).status_code == 200
    refusal = await client.post(SPEECH, json=ask(), headers=origin)
    assert refusal.status_code == 401
    assert refusal.headers["access-control-allow-origin"] == "http://page.example"
    assert refusal.headers["x-request-id"].startswith("req_")


async def test_no_key_is_logged_or_shown(client, ask, settings, caplog):
    with caplog.at_level(logging.DEBUG):
        await client.post(SPEECH, json=ask(), headers=bearer("sk-wrong-0001"))
        answer = await client.post(SPEECH, json=ask(), headers=bearer(FIRST))
    shown = caplog.text + repr(settings) + settings.model_dump_json() + str(answer.headers)
    assert FIRST not in shown
    assert SECOND not in shown
    assert "sk-wrong-0001" not in shown


async def test_the_documentation_says_what_is_locked(client):
    document = (await client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    locked = {
        (method, path) for path, ways in document["paths"].items() for method, way in ways.items() if "security" in way
    }
    assert locked == {
        ("post", SPEECH),
        ("post", "/v1/audio/voices"),
        ("delete", "/v1/audio/voices/{name}"),
        ("post", "/start_profile"),
        ("post", "/stop_profile"),
    }


async def test_without_keys_nothing_is_locked(model, metrics, ask):
    settings, pipeline = Settings(model="/models/robin"), FakePipeline()
    app = create_app(settings, Catalog(settings, model), plan_of, pipeline, metrics, pytest.fail)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.post(SPEECH, json=ask())).status_code == 200
        assert (await client.post(SPEECH, json=ask(), headers=bearer("any"))).status_code == 200
        assert "securitySchemes" not in (await client.get("/openapi.json")).json()["components"]


@pytest.mark.parametrize(("value", "keys"), [("one", ["one"]), ("[one, 'two']", ["one", "two"])])
def test_the_environment_holds_one_key_or_a_list(value, keys):
    options = load_settings(None, {}, {"DUOTONE_HTTP__API_KEYS": value}).http
    assert [key.get_secret_value() for key in options.api_keys] == keys


@pytest.mark.parametrize("value", ["[a b]", "['']", "[' a']", "[secret-1, 5]", "{secret-1: b}"])
def test_what_is_no_key_is_refused_without_showing_it(value):
    with pytest.raises(ConfigurationError, match=r"environment: http\.api_keys") as refusal:
        load_settings(None, {}, {"DUOTONE_HTTP__API_KEYS": value})
    assert "secret-1" not in str(refusal.value)


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n\n", b"\xff\xfe"])
def test_a_file_without_keys_does_not_open_the_server(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=str(file)):
        ApiKeys(HttpOptions(api_keys_file=file))
