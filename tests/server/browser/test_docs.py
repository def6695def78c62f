"""/docs in a browser that reaches nothing but the server."""

from playwright.async_api import expect

from .visit import in_browser

pytestmark = in_browser


async def test_it_shows_every_route_and_asks_nobody_else(page, url):
    await page.goto(url + "docs")
    await expect(page.locator(".opblock-summary-path").first).to_be_visible()
    shown = await page.locator(".opblock-summary-path").all_inner_texts()
    assert {"/v1/audio/speech", "/v1/audio/voices", "/health"} <= {path.replace("\u200b", "") for path in shown}
    await page.get_by_text("/v1/audio/speech").first.click()
    await expect(page.get_by_text("Answers with audio while it is made")).to_be_visible()
