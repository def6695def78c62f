"""The text front end: what is spoken of a text, and where it is cut."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duotone.server.config import TextOptions
from duotone.server.text import cut, ends_sentence, is_speakable, speakable_pieces, strip_emoji, strip_markdown, tidy

WIDE = TextOptions(max_piece_chars=10_000)


def said(text: str) -> str:
    """What is spoken of a text that is not cut."""
    (piece,) = speakable_pieces(text, WIDE)
    return piece


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        ("# Title", "Title."),
        ("### Is it? ###", "Is it?"),
        ("**bold** and *thin* and ***both***", "bold and thin and both"),
        ("__bold__ and _thin_, snake_case_name", "bold and thin, snake_case_name"),
        ("**bold *and thin* in it**", "bold and thin in it"),
        ("~~struck~~ `code` ``more``", "struck code more"),
        ("[a link](http://example.com/x_(y)) and ![a picture](p.png) and [ref][1]", "a link and a picture and ref"),
        ("[not a link] (either)", "[not a link] (either)"),
        ("- one\n* two\n+ three!", "one. two. three!"),
        ("- [x] done\n- [ ] open", "done. open."),
        ("1. first\n2. second", "1. first 2. second"),
        ("> quoted\n> > twice", "quoted. twice."),
        ("> # Quoted title", "Quoted title."),
        ("before\n\n---\n\nafter", "before. after"),
        ("***\ntext", "text"),
        ("Title\n=====\ntext", "Title. text"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a, b. 1, 2."),
        ("2 * 3 * 4 = 24", "2 * 3 * 4 = 24"),
        ("**left open", "left open"),
        ("a ** b", "a b"),
        ("issue #12, C# and 5 - 3", "issue #12, C# and 5 - 3"),
    ],
)
def test_markdown_is_not_spoken(markup, plain):
    assert said(markup) == plain


@pytest.mark.parametrize(
    ("pictured", "plain"),
    [
        ("Good morning 🌞 everyone", "Good morning everyone"),
        ("Well done 🎉!", "Well done!"),
        ("Well done! 🎉🎉 🎊", "Well done!"),
        ("🤪 first", "first"),
        ("one🌞two", "one two"),
        ("family 👨‍👩‍👧‍👦 and flag 🇩🇪 and thumb 👍🏽.", "family and flag and thumb."),
        ("I ❤️ it, (😀) yes", "I it, () yes"),
        ("press 1️⃣ or 2️⃣", "press 1 or 2"),
        ("line 🌞\nline", "line line"),
        ("☀️ ✅ ok ⭐", "ok"),
        ("20 °C, ½ £5 → ™ ©", "20 °C, ½ £5 → ™ ©"),
    ],
)
def test_emoji_are_not_spoken(pictured, plain):
    assert said(pictured) == plain


def test_each_step_can_be_switched_off():
    text = "**bold** 🌞 x"
    assert speakable_pieces(text, TextOptions(strip_markdown=False)) == ["**bold** x"]
    assert speakable_pieces(text, TextOptions(strip_emoji=False)) == ["bold 🌞 x"]


@pytest.mark.parametrize(
    ("text", "spoken"), [("A", "A."), ("7", "seven."), ("mother-in-law", "mother-in-law."), ("a b", "a b")]
)
def test_word_alone_is_closed_with_a_full_stop_where_text_is_normalised(text, spoken):
    assert speakable_pieces(text, TextOptions(normalise="on")) == [spoken]
    assert speakable_pieces(text, TextOptions(normalise="off")) == [text]


@pytest.mark.parametrize("normalise", ["auto", "off"])
def test_numbers_are_left_to_the_model_unless_words_are_asked_for(normalise):
    assert speakable_pieces("Dr. No, 5km", TextOptions(normalise=normalise)) == ["Dr. No, 5km"]
    assert speakable_pieces("Dr. No, 5km", TextOptions(normalise="on")) == ["Doctor No, five kilometers"]


def test_words_are_written_before_the_text_is_cut():
    pieces = speakable_pieces(
        "It was 3:05 p.m. The FBI. Dr. Who came.", TextOptions(normalise="on", max_piece_chars=30)
    )
    assert pieces == ["It was three oh five p m.", "The F B I. Doctor Who came."]


@pytest.mark.parametrize("text", ["!!! ... ?!", ".", "🤪🤩", "---", "**", "…", "\u200b", "()", "\x00"])
def test_a_text_without_letters_or_digits_has_nothing_to_speak(text):
    assert speakable_pieces(text, TextOptions()) == []


@pytest.mark.parametrize("text", ["a", "1", "é", "你", "ж", "½", "。々"])
def test_a_letter_or_digit_of_any_script_is_spoken(text):
    assert is_speakable(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  a \t b\u00a0c  ", "a b c"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\n\n\n\n b", "a\n\nb"),
        ("be\x07ll zero\u200bwidth\ufeff", "bell zerowidth"),
    ],
)
def test_tidy_leaves_single_white_space_and_no_control_characters(text, plain):
    assert tidy(text) == plain


def test_a_paragraph_is_closed_before_the_next_one():
    assert said("A title\n\nThe text. It ends here\n\nlast") == "A title. The text. It ends here. last"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Short. Text.", ["Short. Text."]),
        ("The first sentence. The second one.", ["The first sentence.", "The second one."]),
        ("One. Two. Three. Four. Five. Six.", ["One. Two. Three.", "Four. Five. Six."]),
        ("She asked “why?” and then she left.", ["She asked “why?”", "and then she left."]),
        ("A clause that is, as it is, long.", ["A clause that is,", "as it is, long."]),
        ("Dashes – as this one – cut too, then.", ["Dashes – as this one", "– cut too, then."]),
        ("no signs at all in these words", ["no signs at all in", "these words"]),
        ("Pneumonoultramicroscopic word", ["Pneumonoultramicrosc", "opic word"]),
        ("It costs 3.14 or 2,718 in all", ["It costs 3.14 or", "2,718 in all"]),
        ("I met Dr. Who. He is a doctor.", ["I met Dr. Who.", "He is a doctor."]),
        ("Two things:\n1. the first\n2. no", ["Two things:", "1. the first 2. no"]),
        ("By J. R. Smith and others", ["By J. R. Smith and", "others"]),
        ("一二三四五。六七八九十一二三四五六七八九十。", ["一二三四五。", "六七八九十一二三四五六七八九十。"]),
        ("一二三四五，六七八九十一二三四五六七八九十。", ["一二三四五，", "六七八九十一二三四五六七八九十。"]),
        ("A paragraph\n\nthen another one", ["A paragraph", "then another one"]),
        ("A line here\nthen another line", ["A line here", "then another line"]),
    ],
)
def test_pieces_end_at_the_best_border_that_fits(text, pieces):
    assert cut(text, 20) == pieces


@pytest.mark.parametrize(
    ("piece", "ends"),
    [
        *(("It is.", True), ("Is it?", True), ("So…", True), ("“Why?”", True), ("是。", True), ("at p m.", True)),
        *(("as it is,", False), ("word", False), ("these:", False), ("Dr.", False), ("By J.", False), ("5", False)),
    ],
)
def test_a_piece_tells_whether_a_sentence_ends_with_it(piece, ends):
    assert ends_sentence(piece) == ends


def test_a_letter_is_not_cut_from_its_accent():
    assert cut("e\u0301" * 15, 21) == ["e\u0301" * 10, "e\u0301" * 5]


ODD = st.text(
    st.sampled_from(string.ascii_letters[:6] + "1 .,!?-–*_#`[]()|>~\n\t。，你🌞é\u0301\ufe0f\u200d"), max_size=300
)


@given(text=ODD, max_chars=st.integers(20, 60))
def test_cutting_loses_nothing_but_white_space(text, max_chars):
    pieces = cut(tidy(text), max_chars)
    assert "".join("".join(pieces).split()) == "".join(tidy(text).split())
    assert all(0 < len(piece) <= max_chars and piece == piece.strip() for piece in pieces)


@given(text=ODD, max_chars=st.integers(20, 60))
def test_no_word_that_fits_is_cut(text, max_chars):
    words = set(tidy(text).split())
    whole = {word for word in words if word.isascii() and word.isalnum()}
    parts = {part for piece in cut(tidy(text), max_chars) for part in piece.split()}
    assert whole <= parts


@given(text=ODD)
def test_every_letter_and_digit_outside_links_is_spoken(text):
    text = text.replace("]", " ")
    spoken = "".join(speakable_pieces(text, WIDE))
    letters = [sign for sign in tidy(text) if sign.isalnum()]
    fences = any(line.startswith(("```", "~~~")) for line in tidy(text).split("\n"))
    assert fences or [sign for sign in spoken if sign.isalnum()] == letters


@pytest.mark.parametrize("sign", [*"*_`~[]()|#>-!. \n🌞", "- ", "[a](", "> ", "**a", "| ", "\u200d", "a.b "])
def test_the_front_end_takes_time_in_proportion_to_the_text(sign):
    text = (sign * 100_000)[:100_000] + "x"
    begun_s = time.process_time()
    strip_emoji(strip_markdown(tidy(text)))
    cut(text, 240)
    assert time.process_time() - begun_s < 2
