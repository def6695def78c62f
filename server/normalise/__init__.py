"""Text as it is said in American English: numbers, dates, money, units, abbreviations, addresses and signs as words.

`normalise` is the whole of it (`english.py`); the other files hold its rules by kind. A rule is a pattern and what is
said for it. All repetition in the patterns is bounded or starts at a border, so that every rule is linear in the text.
"""

from .english import normalise

__all__ = ["normalise"]
