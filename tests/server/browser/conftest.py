"""Headless Chromium, and in it the page, served over the fake pipeline."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from ..conftest import listening
from .visit import CHROMIUM, DEADLINE_S, open_page

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--autoplay-policy=no-user-gesture-required"),
)

_RECORD = """
// Everything that is scheduled, and with `tap` everything that sounds, as numbers that a test can read.
window.scheduled = [];
window.sounded = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when_s) {
  const samples = Array.from(this.buffer.getChannelData(0), (sample) => sample * 32768);
  window.scheduled.push({ at: when_s * this.buffer.sampleRate, rate: this.context.sampleRate, samples });
  return start.call(this, when_s);
};
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (window.tap && to === this.context.destination) {
    window.tapped ??= this.context.createScriptProcessor(16384, 1, 1);
    window.tapped.onaudioprocess = ({ inputBuffer }) => window.sounded.push(...inputBuffer.getChannelData(0));
    connect.call(window.tapped, this.context.destination);
    connect.call(this, window.tapped);
  }
  return connect.call(this, to, ...rest);
};
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
def look() -> dict:
    """How the visitor's browser is set up."""
    return {"color_scheme": "light", "viewport": {"width": 1000, "height": 900}}


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser, look) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(**look)
    context.set_default_timeout(DEADLINE_S * 1000)
    await context.add_init_script(_RECORD)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def url(app) -> AsyncIterator[str]:
    async with listening(app) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest_asyncio.fixture(loop_scope="module")
async def page(url, context) -> AsyncIterator[Page]:
    """The page, ready to speak. No test may leave an error in its console, or have asked another server."""
    page, faults, asked = await context.new_page(), [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    await open_page(page, url)
    yield page
    # The browser itself notes every answer that is no success.
    assert [fault for fault in faults if not fault.startswith("Failed to load resource")] == []
    assert [address for address in asked if not address.startswith((url, "data:", f"blob:{url}"))] == []
