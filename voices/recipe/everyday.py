"""Generated everyday English: small talk, requests, announcements, numbers, dates, letters, single words.

Owns the sentence patterns (`patterns.txt`) and the words for their slots (`words.txt`). Numbers are written out, since
that is what the text front end of the server sends.
"""

import random
from pathlib import Path

_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINAL_ENDINGS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}

_FOLDER = Path(__file__).parent
SLOTS = {
    name: words.split("|")
    for name, words in (
        line.split(": ", 1) for line in (_FOLDER / "words.txt").read_text().splitlines() if line[0] != "#"
    )
}
"""What fills a slot, by the slot's name."""
PATTERNS = (_FOLDER / "patterns.txt").read_text().splitlines()
"""Sentences with slots in braces; `_c` after a slot's name asks for a capital."""


def cardinal(n: int) -> str:
    """`n` (0 … 999,999) in words."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + ("-" + _ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return _ONES[n // 100] + " hundred" + (" " + cardinal(n % 100) if n % 100 else "")
    return cardinal(n // 1000) + " thousand" + (" " + cardinal(n % 1000) if n % 1000 else "")


def ordinal(n: int) -> str:
    """`n` as an ordinal in words, as in a day of the month."""
    head, hyphen, last = cardinal(n).rpartition("-")
    if last in _ORDINAL_ENDINGS:
        last = _ORDINAL_ENDINGS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return head + hyphen + last


def clock_time(rng: random.Random) -> str:
    """A time of day in words."""
    hour, minute = (
        _ONES[rng.randint(1, 12)],
        rng.choice((0, 0, 5, 10, 15, 20, 30, 30, 40, 45, 50, 55, rng.randint(1, 59))),
    )
    if minute == 0:
        return hour + rng.choice(("", " o'clock"))
    if rng.random() < 0.2:
        return rng.choice(("half past ", "quarter past ", "quarter to ", "ten past ", "twenty to ")) + hour
    return f"{hour} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def year(rng: random.Random) -> str:
    """A year from 1600 to 2040 in words."""
    n = rng.randint(1600, 2040)
    if 2000 <= n < 2010:
        return "two thousand" + (" " + _ONES[n - 2000] if n > 2000 else "")
    if n % 100 == 0:
        return cardinal(n // 100) + " hundred"
    return cardinal(n // 100) + " " + ("oh " if n % 100 < 10 else "") + cardinal(n % 100)


def _fill(key: str, rng: random.Random) -> str:
    if key.endswith("_c"):
        text = _fill(key[:-2], rng)
        return text[0].upper() + text[1:]
    if key == "num":
        top = rng.choice((12, 12, 20, 100, 100, 1000, 20000))
        return cardinal(rng.randint(0, top))
    if key == "ord":
        return ordinal(rng.randint(1, 31))
    if key == "digits":
        return ", ".join(
            " ".join(rng.choice(_ONES[:10]) for _ in range(rng.randint(2, 4))) for _ in range(rng.randint(1, 3))
        )
    if key == "letter":
        return chr(rng.randint(65, 90))
    if key == "time":
        return clock_time(rng)
    if key == "year":
        return year(rng)
    if key == "adj2":
        return rng.choice(
            ("beautiful", "expensive", "useful", "comfortable", "dangerous", "difficult", "important", "interesting")
        )
    if key == "act2":
        return _fill("act", rng)
    return rng.choice(SLOTS[key])


def everyday_sentence(rng: random.Random) -> str:
    """One generated sentence (a pattern with its slots filled), its first letter a capital."""
    pattern = rng.choice(PATTERNS)
    parts: list[str] = []
    while "{" in pattern:
        head, _, rest = pattern.partition("{")
        key, _, pattern = rest.partition("}")
        parts += (head, _fill(key, rng))
    text = "".join(parts) + pattern
    return text[0].upper() + text[1:]
