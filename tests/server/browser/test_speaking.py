"""The page speaks: what it asks for, what it plays and when, how it is stopped."""

import asyncio
import re
from itertools import pairwise

import numpy as np
import pytest
from playwright.async_api import expect

from duotone.stages.types import SAMPLE_RATE, SAMPLES_PER_FRAME

from .visit import DEADLINE_S, TEXT, in_browser, is_cancelled, samples_of, says, scheduled, speak

pytestmark = in_browser


async def test_what_the_pipeline_made_is_scheduled_sample_by_sample_without_a_gap(page):
    await speak(page)
    await says(page, "Finished")
    chunks = await scheduled(page)
    assert np.array_equal(np.concatenate([samples for _, samples in chunks]), samples_of(TEXT))
    for (start, samples), (next_start, _) in pairwise(chunks):
        assert next_start == pytest.approx(start + len(samples), abs=1e-3)


async def test_what_sounds_is_what_the_pipeline_made(page):
    await page.evaluate("window.tap = true")
    await speak(page)
    await says(page, "Finished")
    expected = samples_of(TEXT)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            sounded = np.array(await page.evaluate("window.sounded")) * 32768
            start = int(np.argmax(sounded != 0)) if sounded.any() else len(sounded)
            if len(sounded) >= start + len(expected):
                break
            await asyncio.sleep(0.05)
    assert np.array_equal(sounded[start : start + len(expected)], expected)


@pytest.mark.parametrize("cuts", [[1] * 12, [3, 1, 5, 3], [2, 7, 3], [11, 1], [12]])
async def test_samples_are_whole_however_the_network_cut_their_bytes(page, cuts):
    samples = [0, 1, -1, 32767, -32768, 258]
    read = await page.evaluate(
        """async ([bytes, cuts]) => {
            const { SampleReader } = await import("/sound.js");
            const reader = new SampleReader();
            return cuts.flatMap((cut) => Array.from(reader.read(new Uint8Array(bytes.splice(0, cut)))));
        }""",
        [list(np.array(samples, "<i2").tobytes()), cuts],
    )
    assert read == samples


async def test_the_first_samples_sound_while_the_rest_is_made_and_silence_between_loses_none(page, pipeline):
    pipeline.gate = asyncio.Semaphore(1)
    await speak(page)
    await says(page, "Speaking")
    assert pipeline.made_chunks == 1
    await expect(page.locator("#duration")).to_have_text("0.08 s")
    await expect(page.locator("#first-sound")).to_have_text(re.compile(r"^\d+ ms$"))
    await expect(page.locator("#made-in")).to_have_text("–")
    await asyncio.sleep(3 * SAMPLES_PER_FRAME / SAMPLE_RATE)
    for _ in TEXT:
        pipeline.gate.release()
    await says(page, "Finished")
    chunks = await scheduled(page)
    assert np.array_equal(np.concatenate([samples for _, samples in chunks]), samples_of(TEXT))
    assert chunks[1][0] > chunks[0][0] + SAMPLES_PER_FRAME


async def test_the_time_to_the_first_sound_counts_from_the_click(page, pipeline):
    pipeline.gate = asyncio.Semaphore(0)
    await speak(page)
    await says(page, "Waiting for the first sound")
    await asyncio.sleep(0.4)
    for _ in range(len(TEXT) + 1):
        pipeline.gate.release()
    await says(page, "Finished")
    first_ms = int((await page.locator("#first-sound").inner_text()).removesuffix(" ms"))
    assert 400 < first_ms < 3000
    assert float((await page.locator("#made-in").inner_text()).removesuffix(" s")) > 0.4
    await expect(page.locator("#duration")).to_have_text("0.24 s")


async def test_the_choices_are_what_is_asked_for(page, pipeline):
    await page.get_by_label("Voice").select_option("ryan")
    await page.get_by_label("Seed").fill("77")
    await speak(page)
    await says(page, "Finished")
    stream = pipeline.streams[0]
    assert (stream.text, stream.choices[1], stream.sampling.seed) == (TEXT, "ryan", 77)


async def test_an_open_seed_is_drawn_anew_each_time_and_shown(page, pipeline):
    shown = []
    for _ in range(2):
        await speak(page)
        await says(page, "Finished")
        shown.append(int(await page.locator("#seed-used").inner_text()))
    assert shown == [stream.sampling.seed for stream in pipeline.streams]
    assert shown[0] != shown[1]


@pytest.mark.parametrize("way", ["button", "key"])
async def test_stopping_reaches_the_pipeline_and_silences_the_page(page, pipeline, way):
    pipeline.gate = asyncio.Semaphore(2)
    await speak(page)
    await says(page, "Speaking")
    if way == "button":
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Speak")).to_be_focused()
    else:
        await page.keyboard.press("Escape")
    await is_cancelled(pipeline)
    await says(page, "Stopped")
    assert pipeline.made_chunks <= 2
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    await expect(page.get_by_role("button", name="Download")).to_be_disabled()
    await expect(page.get_by_role("alert")).to_be_empty()


async def test_stopping_silences_what_is_made_but_not_heard_yet(page, pipeline):
    await page.evaluate("window.tap = true")
    await speak(page, "A long text.")
    await expect(page.locator("#made-in")).not_to_have_text("–")
    await page.keyboard.press("Escape")
    await says(page, "Stopped")
    async with asyncio.timeout(DEADLINE_S):
        while len(sounded := np.array(await page.evaluate("window.sounded"))) < SAMPLE_RATE * 3 / 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert np.count_nonzero(sounded) < len(samples_of("A long text."))


async def test_speaking_again_takes_the_place_of_what_was_spoken(page, pipeline):
    pipeline.gate = asyncio.Semaphore(1)
    await speak(page, "First.")
    await says(page, "Speaking")
    async with asyncio.timeout(DEADLINE_S):
        while not await scheduled(page):  # noqa: ASYNC110  (the page has no event to wait for)
            await asyncio.sleep(0.01)
    await speak(page, "Again.")
    await is_cancelled(pipeline)
    for _ in range(8):
        pipeline.gate.release()
    await says(page, "Finished")
    assert [stream.text for stream in pipeline.streams] == ["First.", "Again."]
    later = [samples for _, samples in (await scheduled(page))[1:]]
    assert np.array_equal(np.concatenate(later), samples_of("Again."))


@pytest.mark.parametrize("keys", ["Control+Enter", "Meta+Enter"])
async def test_the_keyboard_speaks(page, pipeline, keys):
    await expect(page.get_by_label("Text")).to_be_focused()
    await page.keyboard.press("Control+A")
    await page.keyboard.type(TEXT)
    await page.keyboard.press(keys)
    await says(page, "Finished")
    assert [stream.text for stream in pipeline.streams] == [TEXT]


async def test_playing_again_sounds_the_same_and_asks_nothing(page, pipeline):
    await speak(page)
    await says(page, "Finished")
    before = len(await scheduled(page))
    await page.get_by_role("button", name="Play again").click()
    await says(page, "Speaking")
    await says(page, "Finished")
    [(_, samples)] = (await scheduled(page))[before:]
    assert np.array_equal(samples, samples_of(TEXT))
    assert len(pipeline.streams) == 1
