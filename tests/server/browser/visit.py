"""What a visitor of the page does and sees."""

import asyncio
import shutil

import numpy as np
import pytest
from playwright.async_api import Page, expect

from duotone.stages.types import SAMPLE_RATE

from ..fake_pipeline import spoken

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE_S = 10
TEXT = "Hi."

in_browser = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]
"""For the `pytestmark` of every module here: its tests share a browser, and so an event loop."""


async def open_page(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.get_by_label("Voice").locator("option").first).to_be_attached()


async def speak(page: Page, text: str = TEXT) -> None:
    await page.get_by_label("Text").fill(text)
    await page.get_by_role("button", name="Speak").click()


async def says(page: Page, status: str) -> None:
    """Wait until the status line reads so."""
    await expect(page.get_by_role("status")).to_have_text(status, timeout=DEADLINE_S * 1000)


async def is_cancelled(pipeline) -> None:
    """Wait until the pipeline is told to stop a piece."""
    async with asyncio.timeout(DEADLINE_S):
        await pipeline.cancellations.acquire()


async def scheduled(page: Page) -> list[tuple[float, np.ndarray]]:
    """Every chunk that was handed to Web Audio: where it starts, in samples on the context's clock, and its samples."""
    chunks = await page.evaluate("window.scheduled")
    assert {chunk["rate"] for chunk in chunks} <= {SAMPLE_RATE}
    return [(chunk["at"], np.array(chunk["samples"])) for chunk in chunks]


def samples_of(text: str) -> np.ndarray:
    return np.frombuffer(spoken(text), "<i2").astype(float)


async def with_document(page: Page, url: str, field: str, **schema) -> None:
    """Open the page on a server whose document says this of a field."""

    async def answer(route) -> None:
        response = await route.fetch()
        document = await response.json()
        document["components"]["schemas"]["SpeechRequest"]["properties"][field] = schema
        await route.fulfill(json=document)

    await page.route("**/openapi.json", answer)
    await open_page(page, url)
