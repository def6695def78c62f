"""The page saves: the samples that it holds, a file of them, or what the server makes of the same request."""

import asyncio
import io
import wave

from playwright.async_api import Page, expect

from duotone.stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME

from ..fake_pipeline import spoken
from .visit import in_browser, says, speak, with_document

pytestmark = in_browser


async def saved(page: Page, format: str) -> tuple[str, bytes]:
    """Press Download; returns the file's name and content."""
    await page.get_by_label("Download as").select_option(format)
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Download").click()
    file = await downloading.value
    content = await asyncio.to_thread((await file.path()).read_bytes)
    return file.suggested_filename, content


async def test_the_speech_is_saved_as_its_samples_or_as_a_wav_file_of_them(page, pipeline):
    await speak(page, "Grüße an alle, hello there!")
    await says(page, "Finished")
    text = pipeline.streams[0].text
    assert await saved(page, "pcm") == ("grüße-an-alle-hello-there.pcm", spoken(text))
    name, content = await saved(page, "wav")
    assert name == "grüße-an-alle-hello-there.wav"
    assert len(content) == 44 + len(spoken(text))
    with wave.open(io.BytesIO(content)) as audio:
        assert audio.getparams()[:4] == (1, 2, SAMPLE_RATE, len(text) * SAMPLES_PER_FRAME)
        assert audio.readframes(audio.getnframes()) == spoken(text)
    await says(page, f"Saved {name}")
    assert len(pipeline.streams) == 1


async def test_another_format_is_made_once_more_by_the_server_with_the_same_seed(page, url):
    await with_document(page, url, "response_format", enum=["flac", "wav"], default="flac")
    bodies = []

    async def answer(route) -> None:
        bodies.append(route.request.post_data_json)
        if bodies[-1]["response_format"] == "flac":
            await route.fulfill(body=b"fLaC...")
        else:
            await route.continue_()

    await page.route("**/v1/audio/speech", answer)
    assert await page.get_by_label("Download as").input_value() == "flac"
    await speak(page)
    await says(page, "Finished")
    assert await saved(page, "flac") == ("hi.flac", b"fLaC...")
    streamed, complete = bodies
    assert streamed["response_format"] == "pcm"
    assert complete == streamed | {"response_format": "flac", "stream": False}


async def test_every_format_that_the_server_lists_can_be_saved(page, pipeline):
    await speak(page)
    await says(page, "Finished")
    for format in await page.get_by_label("Download as").locator("option").all_inner_texts():
        name, content = await saved(page, format)
        assert name == f"hi.{format}"
        assert len(content) > 44
    assert len({stream.sampling.seed for stream in pipeline.streams}) == 1


async def test_making_a_file_can_be_stopped(page, url):
    await with_document(page, url, "response_format", enum=["flac"], default="flac")
    await speak(page)
    await says(page, "Finished")
    # A request that is never let through stands for one that takes long.
    await page.route("**/v1/audio/speech", lambda route: None)
    await page.get_by_role("button", name="Download").click()
    await says(page, "Making hi.flac")
    await page.keyboard.press("Escape")
    await says(page, "Stopped")
    await expect(page.get_by_role("button", name="Download")).to_be_enabled()


async def test_a_file_that_cannot_be_made_is_told_beside_the_format(page, url):
    await with_document(page, url, "response_format", enum=["ogg"], default="ogg")
    await speak(page)
    await says(page, "Finished")
    await page.get_by_role("button", name="Download").click()
    await expect(page.locator("#response_format-problem")).to_contain_text("Input should be")
    await says(page, "")
