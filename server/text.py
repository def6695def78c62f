"""The text front end: what an input becomes before it is tokenized.

`speakable_pieces` is the whole of it: tidy, strip markdown and emoji, normalise, cut. Every step is a pure function of
the text and linear in its length.
"""

import re
import unicodedata

from .config import TextOptions

_BLANK_LINES = re.compile(r"\n{3,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff]")

_PICTURE = (
    r"[\U0001f000-\U0001faff\u231a\u231b\u23e9-\u23f3\u23f8-\u23fa\u25fb-\u25fe\u2600-\u2775\u2794-\u27bf\u2b00-\u2bff]"
)
_JOINED = r"[\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]"
_EMOJI = re.compile(rf"[ ]?{_PICTURE}(?:[ ]?{_PICTURE}|{_JOINED})*(?P<closing>[ ]?(?=[,.;:!?)]|$))?", re.MULTILINE)
_PICTURE_MARKS = re.compile(r"[\ufe0e\ufe0f\u20e3]")
"""What makes a picture of an ordinary character: a digit as a keycap is still a digit."""

_FENCE = re.compile(r"^(?:```|~~~).*$", re.MULTILINE)
_RULE = re.compile(r"^(?:(?:- ?){3,}|(?:\* ?){3,}|(?:_ ?){3,}|={3,})$", re.MULTILINE)
_TABLE_RULE = re.compile(r"^\|? ?:?--[-:| ]*$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
_BLOCK = re.compile(r"^(?:> ?)*(?:#{1,6} |[-*+] (?:\[[ xX]\] )?|> ?)(?P<line>.*)$", re.MULTILINE)
_CLOSING_HASHES = re.compile(r" #+$")
_LINK = re.compile(r"!?\[(?P<text>[^\[\]\n]*)\](?:\([^()\n]*(?:\([^()\n]*\)[^()\n]*)?\)|\[[^\[\]\n]*\])")
_STARS = re.compile(r"(?<!\*)(\*{1,3})(?=[^\s*])(?P<text>[^*\n]+)(?<=\S)\1(?!\*)")
_UNDERSCORES = re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])(?P<text>[^_\n]+)(?<=\S)\1(?!\w)")
_STRUCK = re.compile(r"~~(?P<text>[^~\n]+)~~")
_UNPAIRED = re.compile(r"`+|\*{2,}(?P<text>)")
_SPANS = (_STARS, _STARS, _UNDERSCORES, _STRUCK)
"""Stars twice: emphasis within emphasis."""

_CLOSERS = "\"'”’»)\\]」』）"
_SENTENCE_END = re.compile(rf"[.!?…]+[{_CLOSERS}]*(?=\s)|[。！？]+[{_CLOSERS}]*|\n\n")
_CLAUSE_END = re.compile(rf"[,;:][{_CLOSERS}]*(?=\s)|[，；：、]|(?= [–—-]\s)|—(?=\S)|\n")
_WORD_END = re.compile(r"(?=\s)")
_LOOK_AHEAD_CHARS = 3
"""What a border needs to see of the text behind it."""
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“‘])(?:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|no|vol|fig|approx|inc|ltd|co|[a-z])\.$"
    r"|(?:^|\n)\d{1,3}\.$",
    re.IGNORECASE,
)
"""Where a full stop ends no sentence; the number of a list's item is one of them."""
_ABBREVIATION_CHARS = 12
"""Longer than any abbreviation with the character before it."""


def speakable_pieces(text: str, options: TextOptions) -> list[str]:
    """The pieces that an input is spoken in, each at most `max_piece_chars` long; none if it holds nothing to speak."""
    cleaned = tidy(text)
    if options.strip_markdown:
        cleaned = strip_markdown(cleaned)
    if options.strip_emoji:
        cleaned = strip_emoji(cleaned)
    return [piece for piece in cut(normalise(tidy(cleaned)), options.max_piece_chars) if is_speakable(piece)]


def tidy(text: str) -> str:
    """Text without control characters, its white space single: spaces, line ends, blank lines between paragraphs."""
    lines = (" ".join(line.split()) for line in _CONTROL.sub("", text).splitlines())
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def is_speakable(text: str) -> bool:
    """Whether there is a letter or a digit of any script."""
    return any(character.isalnum() for character in text)


def normalise(text: str) -> str:
    """Text as it is said. So far only paragraphs are closed, so that a title is not run together with what it heads.

    Numbers, dates, money and abbreviations have their place here.
    """
    *heads, last = text.split("\n\n")
    return "\n\n".join([*map(_as_sentence, heads), last])


def strip_emoji(text: str) -> str:
    """Tidy text without pictures: words around one stay apart, punctuation behind one moves up to the word before."""
    text = _EMOJI.sub(lambda match: " " if match["closing"] is None else "", text)
    return _PICTURE_MARKS.sub("", text)


def strip_markdown(text: str) -> str:
    """Tidy text without markup. Headings, list items and table rows become sentences, so that they are heard apart."""
    for line_mark in (_FENCE, _TABLE_RULE, _RULE):
        text = line_mark.sub("", text)
    text = _TABLE_ROW.sub(lambda row: _as_sentence(", ".join(cell.strip() for cell in row[1].split("|"))), text)
    for span in (_LINK, *_SPANS):
        text = span.sub(r"\g<text>", text)
    text = _BLOCK.sub(lambda block: _as_sentence(_CLOSING_HASHES.sub("", block["line"])), text)
    return _UNPAIRED.sub("", text)


def _as_sentence(line: str) -> str:
    return f"{line}." if line and line[-1].isalnum() else line


def cut(text: str, max_chars: int) -> list[str]:
    """Cut a tidy text into pieces of at most `max_chars`: behind a sentence, else a clause, else a word, else anywhere.

    Pieces are as long as they can be, one line each, without outer white space.
    """
    pieces, start = [], 0
    while len(text) - start > max_chars:
        end = start + _last_border(text[start : start + max_chars + _LOOK_AHEAD_CHARS], max_chars)
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


def _last_border(window: str, fits: int) -> int:
    """Where to cut a window of which only the first `fits` characters fit: an index from 1 to `fits`."""
    sentences = [match.end() for match in _SENTENCE_END.finditer(window) if not _abbreviates(window, match.end())]
    clauses = [match.end() for match in _CLAUSE_END.finditer(window)]
    words = [match.start() for match in _WORD_END.finditer(window)]
    for borders in (sentences, clauses, words):
        fitting = [border for border in borders if 0 < border <= fits]
        if fitting:
            return fitting[-1]
    end = fits
    while end > 1 and unicodedata.combining(window[end]):
        end -= 1
    return end


def _abbreviates(window: str, end: int) -> bool:
    return _ABBREVIATION.search(window[max(0, end - _ABBREVIATION_CHARS) : end]) is not None
