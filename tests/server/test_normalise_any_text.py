"""What normalising does to any text: it fails on none, loses no plain word, and takes its time in proportion."""

import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from duotone.server.normalise import normalise

MARKS = [*"0123456789", *" .,:;!?-–—/%$£€#@&+=<>()[]'\"°²³×~^*|_\\\n…½①٣Ⅷ次é\u0301", *string.ascii_letters]
FRAGMENTS = [*MARKS, "Dr. ", "St. ", "No. ", "1st", "Dec ", "km", "p.m.", "http://", "www.", "U.S.", "10", "the"]


@given(st.one_of(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join), st.text(max_size=60)))
def test_no_text_fails_and_no_digit_is_left(text):
    said = normalise(text)
    assert not any(sign.isdigit() for sign in said)
    assert said.count("\n") == text.count("\n")


WORD = st.from_regex(r"[A-Z]?[a-z]?(?:[bcdfghklmnprstvwz]?[aeiou]){1,5}[nrst]?", fullmatch=True)
WORDS = st.lists(
    st.tuples(WORD.filter(lambda word: word != "aka"), st.sampled_from([" ", ", ", "; ", "! ", "? "])), min_size=1
)
OTHERS = ["5km", "$3.50", "12/25/2026", "3:05pm", "#1", "Mrs.", "1/2", "&", "—", "1次", "e.g.", "50%", "FBI", "a@b.com"]


@given(WORDS)
def test_plain_words_are_left_alone(words):
    text = "".join(word + mark for word, mark in words).strip()
    assume(len(text) > 1)  # a letter alone is its name
    assert normalise(text) == text


@given(WORDS, st.lists(st.sampled_from(OTHERS)))
def test_no_word_beside_others_is_lost(words, others):
    pairs = list(zip(words, others, strict=False))
    said = iter(normalise("".join(f"{word}{mark}{other} " for (word, mark), other in pairs)).split())
    assert all(any(word == heard.rstrip(",;!?") for heard in said) for (word, _), _ in pairs)


@pytest.mark.parametrize(
    "sign",
    [
        *(
            "1",
            "1,",
            "1.",
            "1/",
            "1-",
            "1:",
            "1 ",
            "$1",
            "(1",
            "+1 ",
            "1. a\n",
            "1920x1080",
            "12/25/2026 ",
            "5m ",
            "12 Mai ",
        ),
        *("a", "A", "A.", "A. ", "aB", "a.", "a/", "a@", "@", "www.", "http://a", "I ", "Dr. ", "e.g. ", "St. A"),
        *(".", "... ", "-", "—", " — ", " ", "\n", "=", "_", "²", "½", "é", "e\u0301", "\u0301", "次"),
    ],
)
def test_it_takes_time_in_proportion_to_the_text(sign):
    text = (sign * 100_000)[:100_000] + "x"
    begun_s = time.process_time()
    normalise(text)
    assert time.process_time() - begun_s < 5
