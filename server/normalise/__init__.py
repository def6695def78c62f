"""Text as it is said in American English: numbers, dates, money, units, abbreviations, addresses and signs as words.

`normalise` is the whole of it, all rules in their order: what an earlier one has said, a later one finds no digits in.
The other files hold the rules by kind. A rule is a pattern and what is said for it. All repetition in the patterns is
bounded or starts at a border, so that every rule is linear in the text.
"""

import re

from .acronyms import LETTERS, acronyms, is_shout
from .addresses import ADDRESSES
from .calendar import DATES_AND_TIMES
from .names import NAMES, ROMAN_NUMERALS
from .quantities import NUMBERS, QUANTITIES
from .rule import Rule, rule
from .signs import COMPARISONS, SIGNS, folded


def _list_item(match: re.Match[str]) -> str:
    line = match["line"]
    return f"{match['number']}, {line}" + ("." if line[-1].isalnum() else "")


LIST_ITEMS: tuple[Rule, ...] = (rule(r"^(?P<number>\d{1,3})[.)] (?P<line>.+)$", _list_item, re.MULTILINE),)
_RULES = (
    *(*ADDRESSES, *LIST_ITEMS, *DATES_AND_TIMES, *NAMES, *COMPARISONS, *QUANTITIES, *SIGNS, *ROMAN_NUMERALS, *NUMBERS),
    *LETTERS,
)
_SPACES = re.compile(r" {2,}")
_LOST_SPACE = re.compile(r" (?=(?:[,.;!?]+|:|\)[,.;:!?]*)(?:\s|$))|(?<=\() |^ | $", re.MULTILINE)


def normalise(text: str) -> str:
    """An English text in words, without any digit. Any text can be given: words and punctuation stay as they are."""
    shout = is_shout(text)
    text = folded(text)
    for each in _RULES:
        text = each.apply(text)
    return _LOST_SPACE.sub("", _SPACES.sub(" ", acronyms(text, shout)))
