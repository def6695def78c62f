"""What holds on every route: the envelope, request ids, the body limit, CORS, the documentation; the life around."""

import asyncio
import json
import logging
import re

import httpx
import pytest

from duotone.server.app import create_app
from duotone.server.catalog import Catalog
from duotone.server.request_id import RequestIdFilter
from duotone.stages.errors import ConfigurationError

from .fake_pipeline import plan_of

SPEECH = "/v1/audio/speech"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "not_found"),
        ("GET", "/v1/readyz", 404, "not_found"),
        ("GET", "/v1/test", 404, "not_found"),
        ("POST", f"{SPEECH}/", 404, "not_found"),
        ("GET", "/health/", 404, "not_found"),
        ("GET", "/v1/audio/voices/", 404, "not_found"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
        ("GET", SPEECH, 405, "method_not_allowed"),
        ("PUT", SPEECH, 405, "method_not_allowed"),
        ("OPTIONS", SPEECH, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/v1/audio/voices", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("POST", SPEECH, 400, "invalid_value"),
    ],
)
async def test_every_error_has_openai_s_envelope(client, method, path, status, code):
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


@pytest.mark.parametrize("content", [b"{", b'{"model": }', b"[1,", b'{"a": NaN1}', b"nonsense"])
async def test_what_is_no_json_is_told_as_such(client, content):
    error = (await client.post(SPEECH, content=content)).json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_json", None)
    assert "not JSON" in error["message"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"model": "\xff"}', "the body is not UTF-8: invalid start byte at byte 11"),
        (b"\xff\xfe\x00", "the body is not UTF-16-LE: truncated data at byte 2"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "the body cannot be read: Exceeds the limit (4300 digits) "),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(client, content, why):
    answer = await client.post(SPEECH, content=content)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_body")
    assert error["message"].startswith(why)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/page.js", "/docs", "/openapi.json", "/health", "/live", "/metrics"),
        *("/v1/models", "/v1/models/robin", "/v1/audio/voices", "/v1/audio/models"),
        *("/nothing", SPEECH),
    ],
)
async def test_head_is_answered_as_get_without_the_body(live, path):
    """A body would be taken for the next answer on the connection."""
    head, get = await live.head(path), await live.get(path)
    assert head.status_code == get.status_code
    for answer in (head, get):
        for varying in ("x-request-id", "date"):
            del answer.headers[varying]
    assert head.headers == get.headers


async def test_head_of_an_unready_server_says_so(live, pipeline):
    pipeline.ready = False
    assert (await live.head("/health")).status_code == 503


async def test_the_documentation_s_page_asks_for_nothing_from_elsewhere(client):
    page = (await client.get("/docs")).text
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(links) >= 3
    assert "//" not in "".join(links)
    for link in links:
        assert (await client.get(link)).status_code == 200
    assert "https://" not in page
    assert (await client.get("/redoc")).status_code == 404


async def test_a_wrong_method_is_told_the_right_one(client):
    assert (await client.get(SPEECH)).headers["allow"] == "POST"
    assert (await client.put("/v1/audio/voices")).headers["allow"] == "GET, POST"


@pytest.mark.parametrize("given", ["abc", "trace:1/2-3_4.5", "x" * 128])
async def test_a_sane_request_id_comes_back(client, given):
    for path in ("/live", "/nothing"):
        assert (await client.get(path, headers={"X-Request-Id": given})).headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "-"])
async def test_any_other_request_id_is_replaced(client, given):
    made = (await client.get("/live", headers={"X-Request-Id": given})).headers["x-request-id"]
    assert made.startswith("req_")
    assert len(made) == 36


async def test_log_lines_carry_the_request_s_id(client, caplog):
    caplog.handler.addFilter(RequestIdFilter())
    with caplog.at_level(logging.INFO):
        await client.get("/nothing", headers={"X-Request-Id": "mine"})
    record = next(record for record in caplog.records if record.name == "duotone.server.errors")
    assert record.request_id == "mine"


async def test_a_refused_body_is_not_logged(client, ask, caplog):
    with caplog.at_level(logging.INFO):
        await client.post(SPEECH, json=ask(voice=["a secret\nof two lines"]))
    assert "voice: expected a name" in caplog.text
    assert "secret" not in caplog.text


async def test_a_body_that_says_it_is_too_large_is_refused_unread(client, settings):
    answer = await client.post(SPEECH, content=b" " * (settings.http.max_body_bytes + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_turns_out_too_large_is_refused(live, settings):
    async def endless():
        for _ in range(2 + settings.http.max_body_bytes // 65536):
            yield b" " * 65536

    answer = await live.post(SPEECH, content=endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_a_body_of_the_largest_size_is_read(client, settings, ask):
    content = json.dumps(ask()).encode().ljust(settings.http.max_body_bytes)
    answer = await client.post(SPEECH, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


def preflight(origin: str) -> dict[str, str]:
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return {"Origin": origin} | wanted


async def test_a_configured_origin_s_preflight_is_answered(client):
    answer = await client.options(SPEECH, headers=preflight("http://page.example"))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "http://page.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"


async def test_another_origin_s_preflight_is_not(client):
    answer = await client.options(SPEECH, headers=preflight("http://evil.example"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert answer.headers["X-Request-Id"]
    assert "access-control-allow-origin" not in answer.headers


async def test_a_page_may_read_answers_and_errors(client, ask):
    for body in (ask(), ask(voice="nope")):
        answer = await client.post(SPEECH, json=body, headers={"Origin": "http://page.example"})
        assert answer.headers["access-control-allow-origin"] == "http://page.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_the_documentation_knows_the_envelope_and_no_other_error(client):
    assert (await client.get("/docs")).status_code == 200
    document = (await client.get("/openapi.json")).json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
    answers = document["paths"][SPEECH]["post"]["responses"]
    envelope = {"$ref": "#/components/schemas/ErrorEnvelope"}
    assert answers["4XX"]["content"]["application/json"]["schema"] == envelope
    assert answers["5XX"]["content"]["application/json"]["schema"] == envelope
    audio = {f"audio/{name}" for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")}
    assert set(answers["200"]["content"]) == audio | {"text/event-stream"}
    assert "X-Request-Id" in answers["200"]["headers"]


async def test_the_documentation_states_the_checks_of_every_field(client):
    schema = (await client.get("/openapi.json")).json()["components"]["schemas"]["SpeechRequest"]
    assert schema["required"] == ["model", "input"]
    assert schema["properties"]["response_format"]["enum"] == ["mp3", "opus", "aac", "flac", "wav", "pcm"]
    assert schema["properties"]["response_format"]["default"] == "mp3"
    assert {"type": "string"} in schema["properties"]["voice"]["anyOf"]
    seed = next(way for way in schema["properties"]["seed"]["anyOf"] if way["type"] == "integer")
    assert seed["minimum"] == 0


async def test_the_documentation_s_examples_are_answered(client):
    schema = (await client.get("/openapi.json")).json()["components"]["schemas"]["SpeechRequest"]
    assert len(schema["examples"]) == 3
    for example in schema["examples"]:
        assert (await client.post(SPEECH, json=example)).status_code == 200


async def test_the_application_starts_the_pipeline_and_stops_it(app, pipeline):
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
        assert pipeline.life == ["start"]
    assert pipeline.life == ["start", "stop 10"]


async def test_a_pipeline_that_cannot_start_is_told(app, pipeline, start_failures):
    pipeline.start_error = ConfigurationError("no such device")
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
    assert start_failures == [pipeline.start_error]
    assert pipeline.life == ["start", "stop 10"]


async def test_a_server_that_ends_while_the_pipeline_starts_does_not_wait_for_it(settings, model, pipeline, metrics):
    started = asyncio.Event()

    async def start_for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    pipeline.start = start_for_ever
    app = create_app(settings, Catalog(settings, model), plan_of, pipeline, metrics, pytest.fail)
    async with asyncio.timeout(5), app.router.lifespan_context(app):
        await started.wait()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/live")).status_code == 200
    assert pipeline.life == ["stop 10"]
