"""What a rule of the text front end is, and the pieces that the patterns of several kinds share."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,5}(?!\d)|\d{1,2}(?:,\d\d){1,4},\d{3}(?!\d)|\d{1,18}(?!\d))(?:\.\d{1,18}(?!\d))?"
"""A number as written: `1,200.50`, `007`, `3.14`; `12,00,000` too."""
STARTS = r"(?<![A-Za-z\d])(?<!\d[.,])"
"""Where a number can begin: not within a word or another number."""
ENDS = r"(?![A-Za-z\d])"
"""Where a unit or a letter behind a number can end."""

SENTENCE_STARTERS = (
    "A|After|All|An|And|As|At|Before|But|Do|For|He|Her|His|How|I|If|In|Is|It|Its|My|Next|No|Not|Now|On|Our|She|So|Some|"
    "That|The|Their|Then|There|These|They|This|Those|To|We|What|When|Where|Who|Why|Yes|You|Your"
)
"""Words in capitals that begin a sentence and no name."""
_SENTENCE_ENDS = re.compile(rf"[\"')\]]{{0,2}}(?:\n|$| (?:{SENTENCE_STARTERS})\b)")


@dataclass(frozen=True)
class Rule:
    """What is found, and the words for it: None where it turns out to be something else."""

    pattern: re.Pattern[str]
    say: Callable[[re.Match[str]], str | None]

    def apply(self, text: str) -> str:
        """The text with every find said, apart from the letters and digits beside it."""
        return self.pattern.sub(self._said, text)

    def _said(self, match: re.Match[str]) -> str:
        words = self.say(match)
        if words is None:
            return match[0]
        before = match.string[max(0, match.start() - 1) : match.start()]
        after = match.string[match.end() : match.end() + 1]
        return f"{' ' if before.isalnum() else ''}{words}{' ' if after.isalnum() else ''}"


def rule(pattern: str, say: Callable[[re.Match[str]], str | None] | str, flags: int = 0) -> Rule:
    """A rule from a pattern and a function, or the same words for every find."""
    return Rule(re.compile(pattern, flags), say if callable(say) else lambda _: say)


def stop_after(match: re.Match[str]) -> str:
    """The sentence's full stop, where the one of an abbreviation stood for it too."""
    return "." if match[0].rstrip().endswith(".") and _SENTENCE_ENDS.match(match.string, match.end()) else ""


def table(rows: str) -> dict[str, str]:
    """`a, b = said so; c = said otherwise`, over any number of lines."""
    entries = (row.split(" = ") for row in rows.replace(";\n", "; ").strip().split("; "))
    return {key.strip(): " ".join(said.split()) for keys, said in entries for key in keys.split(", ")}


def words(text: str) -> frozenset[str]:
    """Its words."""
    return frozenset(text.split())


def any_of(words: Iterable[str]) -> str:
    """A pattern for one of the words, the longest that fits."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
