"""Numbers in American English words: no "and", no hyphens, no commas. Nothing is rounded."""

import re
from collections.abc import Iterable
from functools import lru_cache

from num2words import num2words

_MOST_CARDINAL_DIGITS = 15
_FEWEST_CODE_DIGITS = 7
"""As many digits without commas are read one by one, unless they end in thousands."""
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")


@lru_cache(maxsize=4096)
def _words(n: int, kind: str) -> str:
    return str(num2words(n, to=kind)).replace(" and ", " ").replace("-", " ").replace(",", "")


def cardinal(n: int) -> str:
    """`125` → "one hundred twenty five"."""
    return _words(n, "cardinal")


def ordinal(n: int) -> str:
    """`25` → "twenty fifth"."""
    return _words(n, "ordinal")


def year(n: int) -> str:
    """`1905` → "nineteen oh five"; for 1010 to 2099, and cardinal elsewhere."""
    return _words(n, "year") if 1010 <= n < 2100 else cardinal(n)


def digits(text: str) -> str:
    """`007` → "zero zero seven"; whatever is no digit is left out."""
    return " ".join(cardinal(int(sign)) for sign in text if sign in "0123456789")


def number(text: str) -> str:
    """A number as written: `1,200.50` → "one thousand two hundred point five zero"."""
    whole, point, fraction = text.replace(",", "").partition(".")
    if len(whole) > _MOST_CARDINAL_DIGITS or (whole.startswith("0") and len(whole) > 1):
        said = digits(whole)
    else:
        said = cardinal(int(whole)) if whole else ""
    return f"{said} point {digits(fraction)}".strip() if point else said


def bare_number(text: str) -> str:
    """A number that nothing says more about: four digits are read as a year, many as a code, three at a time."""
    if text.isdecimal() and len(text) == 4 and text[0] != "0":
        return year(int(text))
    if text.isdecimal() and len(text) >= _FEWEST_CODE_DIGITS and (text[0] == "0" or not text.endswith("000")):
        return digit_groups(text[at : at + 3] for at in range(0, len(text), 3))
    return number(text)


def digit_groups(groups: Iterable[str]) -> str:
    """`555`, `0199` → "five five five, zero one nine nine"."""
    return ", ".join(map(digits, groups))


def counted(text: str, singular: str, plural: str) -> str:
    """A number as written with what it counts: `1`, foot, feet → "one foot"."""
    return f"{number(text)} {singular if text == '1' else plural}"


def plural(words: str) -> str:
    """`nineteen ninety` → "nineteen nineties"."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("x", "s")) else f"{words}s"


def roman(numeral: str) -> int | None:
    """`VIII` → 8; None for what is no roman numeral."""
    if not numeral or not _ROMAN.fullmatch(numeral):
        return None
    values = [_ROMAN_DIGITS[letter] for letter in numeral]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
