"""How the page looks: its waveform, its themes, on a phone, with little motion, with the keyboard."""

import numpy as np
import pytest
from playwright.async_api import Page, expect

from .visit import in_browser, says, speak, with_document

LONG = "A sentence of forty letters at the most."
HEARD, MADE = (0xB5, 0x47, 0x2F), (0x2C, 0x6E, 0x73)
"""The light theme's two tones."""

pytestmark = in_browser


async def tones(page: Page) -> dict[tuple[int, ...], int]:
    """The colours of the waveform's opaque pixels, and how many pixels have each."""
    counts = await page.locator("#waveform").evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const counts = {};
            for (let at = 0; at < data.length; at += 4)
                if (data[at + 3] === 255) {
                    const colour = data.slice(at, at + 3).join();
                    counts[colour] = (counts[colour] ?? 0) + 1;
                }
            return counts;
        }"""
    )
    return {tuple(map(int, colour.split(","))): count for colour, count in counts.items()}


async def test_the_waveform_tells_what_is_made_from_what_is_heard(page):
    assert not {HEARD, MADE} & (await tones(page)).keys()
    await speak(page, LONG)
    await says(page, "Speaking")
    await expect(page.locator("#made-in")).not_to_have_text("–")
    early = await tones(page)
    assert early[MADE] > early.get(HEARD, 0)
    await says(page, "Finished")
    late = await tones(page)
    assert MADE not in late
    assert late[HEARD] >= early[MADE]
    assert await page.locator("#waveform").get_attribute("aria-label") == "Waveform: 3.2 seconds of speech"


async def test_the_waveform_is_as_high_as_the_samples_are_loud(page):
    heights = await page.evaluate(
        """async () => {
            const { Waveform } = await import("/sound.js");
            const canvas = document.createElement("canvas");
            canvas.style.cssText = "display: block; width: 98px; height: 100px";
            document.body.append(canvas);
            const waveform = new Waveform(canvas);
            for (const loud of [32767, -8192, 0, -32768]) waveform.add(new Int16Array(24000).fill(loud));
            waveform.complete();
            waveform.draw(0);
            const column = (x) => canvas.getContext("2d").getImageData(x, 0, 1, 100).data;
            return [1, 26, 51, 76].map((x) => column(x).filter((part, i) => i % 4 === 3 && part > 0).length);
        }"""
    )
    assert heights == pytest.approx([100, 50, 3, 100], abs=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_text_stands_out_from_its_ground_in_both_themes(page, theme):
    await page.emulate_media(color_scheme=theme)
    colours = await page.evaluate(
        """() => {
            const style = getComputedStyle(document.body);
            const names = ["paper", "raised", "ink", "quiet", "heard", "made", "edge"];
            return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
        }"""
    )
    light = {name: luminance(colour) for name, colour in colours.items()}
    assert (light["paper"] > 0.5) == (theme == "light")
    for tone, ground, least in [
        *((tone, ground, 4.5) for tone in ("ink", "quiet") for ground in ("paper", "raised")),
        *((tone, "paper", 4.5) for tone in ("heard", "made")),
        *(("edge", ground, 3) for ground in ("paper", "raised")),
    ]:
        high, low = sorted((light[tone], light[ground]), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= least, (tone, ground)


def luminance(colour: str) -> float:
    """WCAG's relative luminance of a colour such as #2c6e73."""
    parts = np.array([int(colour.strip()[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


class TestPhone:
    @pytest.fixture(params=["light", "dark"])
    def look(self, request) -> dict:
        size = {"width": 360, "height": 700}
        return {"color_scheme": request.param, "viewport": size, "has_touch": True, "is_mobile": True}

    async def test_nothing_is_wider_than_a_phone_and_buttons_fit_a_finger(self, page):
        await speak(page)
        await says(page, "Finished")
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        for button in await page.get_by_role("button").all():
            assert (await button.bounding_box())["height"] >= 44


async def drawings(page: Page) -> int:
    """How often the waveform is drawn while a second and a half is spoken."""
    await page.evaluate(
        """() => {
            const scale = CanvasRenderingContext2D.prototype.scale;
            window.drawings = 0;
            CanvasRenderingContext2D.prototype.scale = function (...by) {
                window.drawings++;
                return scale.apply(this, by);
            };
        }"""
    )
    await speak(page, "A second of speech.")
    await says(page, "Finished")
    return await page.evaluate("window.drawings")


async def test_the_waveform_moves_smoothly(page):
    assert await drawings(page) > 20


async def test_it_moves_little_for_who_wants_little_motion(page):
    await page.emulate_media(reduced_motion="reduce")
    assert 0 < await drawings(page) < 15


async def test_the_keyboard_reaches_every_control_and_shows_where_it_is(page, url):
    await with_document(page, url, "speed", minimum=0.25, maximum=4, default=1)
    await speak(page)
    await says(page, "Finished")
    await page.get_by_role("link", name="API").focus()
    for control in ("input", "voice", "response_format", "seed", "speed", "speak", "replay", "download"):
        await page.keyboard.press("Tab")
        await expect(page.locator(f"#{control}")).to_be_focused()
        await expect(page.locator(f"#{control}")).to_have_css("outline-style", "solid")
