"""What the page shows of what the server offers and of what it refuses."""

import pytest
from playwright.async_api import expect
from starlette.requests import Request
from starlette.responses import JSONResponse

from duotone.stages.errors import QueueFull, StageFailed

from .visit import in_browser, says, speak, with_document

pytestmark = in_browser


async def test_the_voices_are_the_server_s_own_first(page):
    options = page.get_by_label("Voice").locator("option")
    assert (await options.all_inner_texts())[:4] == ["Vivian", "ryan", "default (Vivian)", "alloy (Vivian)"]
    assert await page.get_by_label("Voice").input_value() == "Vivian"


async def test_the_formats_are_those_of_the_document(page, url):
    await with_document(page, url, "response_format", enum=["opus", "wav", "pcm"], default="wav")
    format = page.get_by_label("Download as")
    assert await format.locator("option").all_inner_texts() == ["opus", "wav", "pcm"]
    assert await format.input_value() == "wav"


async def test_the_speed_can_be_chosen_where_the_document_leaves_a_choice(page, url):
    await with_document(page, url, "speed", minimum=0.25, maximum=4, default=1)
    slider = page.get_by_label("Speed")
    await expect(slider).to_be_visible()
    await slider.fill("1.5")
    await expect(page.locator("#speed-shown")).to_have_text("1.5 ×")
    async with page.expect_request("**/v1/audio/speech") as asking:
        await speak(page)
    assert (await asking.value).post_data_json["speed"] == 1.5


@pytest.mark.parametrize(
    "schema",
    [{"minimum": 0.25, "maximum": 4, "default": 1, "const": 1}, {"minimum": 1, "maximum": 1, "default": 1}],
)
async def test_the_speed_is_hidden_where_there_is_one_only(page, url, schema):
    await with_document(page, url, "speed", **schema)
    await expect(page.get_by_label("Speed")).to_be_hidden()
    await speak(page)
    await says(page, "Finished")


async def test_an_error_stands_beside_the_field_that_it_names(page):
    await speak(page, "  ")
    text, problem = page.get_by_label("Text"), page.locator("#input-problem")
    await expect(problem).to_have_text("there is no text to speak")
    await expect(text).to_be_focused()
    await expect(text).to_have_attribute("aria-invalid", "true")
    await expect(text).to_have_attribute("aria-describedby", "input-problem")
    await page.get_by_label("Seed").fill("12x")
    await speak(page)
    await expect(page.locator("#seed-problem")).to_have_text("Input should be a valid integer")
    await expect(problem).to_be_empty()
    assert await text.get_attribute("aria-invalid") is None
    await page.get_by_label("Seed").fill("12")
    await speak(page)
    await says(page, "Finished")
    await expect(page.locator("#seed-problem")).to_be_empty()


async def test_an_error_that_names_no_field_stands_by_itself(page, pipeline):
    pipeline.refusals = [QueueFull("the queue is full", 1)]
    await speak(page)
    await expect(page.get_by_role("alert")).to_have_text("the queue is full")
    await says(page, "")


async def test_an_answer_that_breaks_off_is_told(page, pipeline):
    pipeline.fail_after, pipeline.failure = 2, StageFailed("the talker died")
    await speak(page)
    await expect(page.get_by_role("alert")).to_have_text("The answer broke off before its end.")
    await expect(page.get_by_role("button", name="Download")).to_be_disabled()


async def test_a_server_that_is_gone_is_told_and_found_again(page, context):
    await context.set_offline(True)
    await speak(page)
    await expect(page.get_by_role("alert")).to_have_text("The server cannot be reached.")
    await context.set_offline(False)
    await speak(page)
    await says(page, "Finished")
    await expect(page.get_by_role("alert")).to_be_empty()


async def test_an_offer_that_could_not_be_had_at_first_is_asked_for_again(page, url, pipeline):
    await page.route("**/v1/models", lambda route: route.fulfill(status=503, body="starting"))
    await page.goto(url)
    await expect(page.get_by_role("alert")).to_have_text("The server answers v1/models with 503.")
    await page.unroute("**/v1/models")
    await speak(page)
    await says(page, "Finished")
    assert pipeline.streams[0].choices[1] == "Vivian"


async def test_an_answer_that_is_not_the_server_s_own_is_told_by_its_status(page):
    await page.route("**/v1/audio/speech", lambda route: route.fulfill(status=502, body="<h1>Bad Gateway</h1>"))
    await speak(page)
    await expect(page.get_by_role("alert")).to_have_text("The server answers with status 502.")


class TestKey:
    """A server that wants a key for speech."""

    @pytest.fixture
    def app(self, app):
        async def keyed(scope, receive, send) -> None:
            wanted = scope["type"] == "http" and scope["path"] == "/v1/audio/speech"
            if wanted and Request(scope).headers.get("authorization") != "Bearer sesame":
                error = {"message": "a key is needed", "type": "invalid_request_error", "param": None, "code": None}
                await JSONResponse({"error": error}, 401)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return keyed

    async def test_a_key_is_asked_for_when_the_server_wants_one_and_sent_from_then_on(self, page):
        key = page.get_by_label("API key")
        await expect(key).to_be_hidden()
        await speak(page)
        await expect(key).to_be_focused()
        await expect(page.locator("#key-problem")).to_have_text("a key is needed")
        await key.fill("wrong")
        await speak(page)
        await expect(key).to_be_focused()
        await key.fill("sesame")
        for _ in range(2):
            await speak(page)
            await says(page, "Finished")
