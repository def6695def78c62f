"""A growing text: what is ready when, and that the parts in which it came leave no trace."""

import string
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duotone.server.config import TextOptions
from duotone.server.growing_text import GrowingText

OPTIONS = TextOptions(max_piece_chars=40)


def in_parts(parts: list[str], options: TextOptions = OPTIONS) -> list[str]:
    """All pieces of a text that comes in parts and then ends."""
    text = GrowingText(options)
    pieces = [piece for part in parts for piece in text.add(part)]
    return pieces + text.flush()


def spoken_when(text: str) -> list[tuple[str, str]]:
    """Each piece, with the text that was there when it was given out, one character coming at a time."""
    growing = GrowingText(OPTIONS)
    return [(piece, text[: at + 1]) for at, sign in enumerate(text) for piece in growing.add(sign)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("It is 3.14 or so. Yes", ["It is 3.14 or so.", "Yes"]),
        ("I met Dr. Who, e.g. here. Fine", ["I met Dr. Who, e.g. here.", "Fine"]),
        ("We met at 5 p.m. today. Good", ["We met at 5 p.m. today.", "Good"]),
        ("We met at 5 p.m. Good", ["We met at 5 p.m.", "Good"]),
        ("Well... maybe. Or... No", ["Well... maybe.", "Or...", "No"]),
        ("“Why?” she asked. “Oh.” Then", ["“Why?” she asked.", "“Oh.”", "Then"]),
        ("你好。「好！」她说。", ["你好。", "「好！」", "她说。"]),
        ("# A title\nText\n\nmore", ["A title.", "Text", "more"]),
        ("Two:\n- one\n- two. And\n3. three\nend", ["Two: one.", "two.", "And 3. three", "end"]),
        ("**Bold.** *Thin. It goes on.* ~~No.~~", ["Bold.", "Thin.", "It goes on.", "No."]),
        ("**Dr. Who** came. `a.b` too", ["Dr. Who came.", "a.b too"]),
        ("See [this. And that](http://a.b/c?d. e). Ok!", ["See this.", "And that.", "Ok!"]),
        ("An array [1, 2] it is! [x] Done", ["An array [1, 2] it is!", "[x] Done"]),
        ("| a. b | c |\n|---|---|\n| 1 | 2 |\n", ["a. b, c.", "1, 2."]),
        ("```python\nprint(1)\n```\nDone.", ["print(1)", "Done."]),
        ("Great! 🎉 Next 👩\u200d🚀. End", ["Great!", "Next.", "End"]),
        ("!!! ... 🤪. --- \n\n", []),
        (
            "A clause that goes on, as it is, for quite a while yet.",
            ["A clause that goes on, as it is,", "for quite a while yet."],
        ),
        (
            "no signs at all in these words of mine which go on",
            ["no signs at all in these words of mine", "which go on"],
        ),
    ],
)
def test_pieces_of_a_text_that_comes_one_character_at_a_time(text, pieces):
    assert in_parts(list(text)) == pieces
    assert in_parts([text]) == pieces


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("One. Two", "One. "),
        ("One.\nTwo", "One.\n"),
        ("At 3. 14 it is", "At 3. "),
        ("At 5 p.m. Then", "At 5 p.m. T"),
        ("你好。你", "你好。你"),
        ("A title\n\nText", "A title\n\n"),
        ("- an item\nText", "- an item\n"),
        ("[A link.](u) T", "[A link.](u) "),
        ("word " * 10, ("word " * 10)[:43]),
    ],
)
def test_a_piece_is_ready_as_soon_as_the_text_behind_it_shows_so(text, when):
    assert spoken_when(text)[0][1] == when


@pytest.mark.parametrize(
    "text", ["Hello", "Hello.", "It is 3.", "Dr. ", "At 5 p.m. ", "你好。", "[A link. It", "| a. b "]
)
def test_nothing_is_spoken_that_may_go_on(text):
    assert spoken_when(text) == []
    assert in_parts([text]) != []


def test_what_is_flushed_is_not_spoken_again():
    text = GrowingText(OPTIONS)
    assert text.add("One. Two [a](b") == ["One."]
    assert text.flush() == ["Two [a](b"]
    assert (len(text), text.flush()) == (0, [])
    assert text.add(" Three. F") == ["Three."]


def test_what_is_cleared_is_not_spoken():
    text = GrowingText(OPTIONS)
    text.add("One. Two [a](b")
    assert len(text) == len("Two [a](b")
    text.clear()
    assert (len(text), text.flush()) == (0, [])


def test_markup_is_kept_where_it_is_not_to_be_stripped():
    assert in_parts(list("[a](b) **c**"), TextOptions(strip_markdown=False)) == ["[a](b) **c**"]


ODD = st.text(
    st.sampled_from(string.ascii_letters[:4] + "ABM1 .,!?-–*_#`[]()|>~\n\r\t\x00。，」你🌞é\u0301\ufe0f\u200d\u2029"),
    max_size=200,
)
WORDY = st.lists(
    st.sampled_from(
        ["Dr.", "3.", "14", "p.m.", " ", "\n", "- ", "# ", "**", "*", "a", "Bc", ". ", "![", "[", "](", ")", "|"]
    ),
    max_size=60,
).map("".join)


@given(text=ODD | WORDY, cuts=st.lists(st.integers(0, 200), max_size=8), max_chars=st.integers(20, 60))
def test_any_parts_give_the_same_pieces(text, cuts, max_chars):
    options = TextOptions(max_piece_chars=max_chars)
    ends = sorted({0, len(text), *(end for end in cuts if end < len(text))})
    parts = [text[start:end] for start, end in pairwise(ends)]
    whole = in_parts([text], options)
    assert in_parts(parts, options) == in_parts(list(text), options) == whole
    assert all(0 < len(piece) <= max_chars for piece in whole)


@given(text=ODD)
def test_every_letter_and_digit_outside_links_and_fences_is_spoken(text):
    text = text.replace("]", " ").replace("`", " ").replace("~", " ")
    assert [s for s in "".join(in_parts([text])) if s.isalnum()] == [s for s in text if s.isalnum()]


@pytest.mark.parametrize("sign", ["a", ". ", "[", "[a](", "[a](b", "![", "*_", "| ", "- \n", "。", "p.m. ", "!\u200d"])
def test_one_character_at_a_time_takes_time_in_proportion_to_the_text(sign):
    text = (sign * 10_000)[:10_000]
    begun_s = time.process_time()
    in_parts(list(text), TextOptions())
    assert time.process_time() - begun_s < 4
