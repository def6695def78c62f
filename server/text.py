"""The text front end: what an input becomes before it is tokenized.

`speakable_pieces` is the whole of it: tidy, strip markdown and emoji, normalise, cut. Every step is a pure function of
the text and linear in its length.
"""

import re
import unicodedata

from .config import TextOptions
from .normalise import normalise

_SPACES = re.compile(r"[^\S\n]+")
_LINE_END = re.compile(r" ?\n ?")
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
_LINK_TEXT = r"[^\[\]\n]{0,500}"
_LINK_PATH = r"[^()\n]{0,2000}"
_LINK = re.compile(
    rf"!?\[(?P<text>{_LINK_TEXT})\](?:\({_LINK_PATH}(?:\({_LINK_PATH}\){_LINK_PATH})?\)|\[{_LINK_TEXT}\])"
)
_OPEN_LINK = re.compile(
    rf"!?(?:\[{_LINK_TEXT}(?:\](?:\({_LINK_PATH}(?:\({_LINK_PATH}(?:\){_LINK_PATH})?)?|\[{_LINK_TEXT})?)?)?\Z"
)
"""What may still become a link when more text comes; nothing, at the end, where nothing may."""
_STARS = re.compile(r"(?<!\*)(\*{1,3})(?=[^\s*])(?P<text>[^*\n]+)(?<=\S)\1(?!\*)")
_UNDERSCORES = re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])(?P<text>[^_\n]+)(?<=\S)\1(?!\w)")
_STRUCK = re.compile(r"~~(?P<text>[^~\n]+)~~")
_UNPAIRED = re.compile(
    r"`+|~~|\*{2,}|(?<!\w)[*_]{1,3}(?=[^\W_])|(?<=[^\W_])[*_]{1,3}(?!\w)|(?<=[.,:;!?…)\"”’])[*_]{1,3}(?!\w)"
)
"""Emphasis left open: its other half stands in another piece or nowhere."""
_SPANS = (_STARS, _STARS, _UNDERSCORES, _STRUCK)
"""Stars twice: emphasis within emphasis."""

_CLOSERS = "\"'”’»)\\]」』）*_~`"
_SENTENCE_END = re.compile(rf"[.!?…]+[{_CLOSERS}]*(?=\s)|[。！？]+[{_CLOSERS}]*|\n\n")
_SENTENCE_CLOSED = re.compile(rf"[.!?…。！？][{_CLOSERS}]*$")
_CLAUSE_END = re.compile(rf"[,;:][{_CLOSERS}]*(?=\s)|[，；：、]|(?= [–—-]\s)|—(?=\S)|\n")
_WORD_END = re.compile(r"(?=\s)")
_LOOK_AHEAD_CHARS = 3
"""What a border needs to see of the text behind it."""
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“‘*_])(?:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|no|vol|fig|approx|inc|ltd|co|(?<!\b[a-z]\s)[a-z])\.$"
    r"|(?:^|\n)\d{1,3}\.$",
    re.IGNORECASE,
)
"""Where a full stop ends no sentence, as behind a list's number or an initial, but for a letter of several spelled."""
_ABBREVIATION_CHARS = 12
"""Longer than any abbreviation with the character before it."""
_MAY_GO_ON = re.compile(rf"(?:\.\w+\.|\.\.|…|[{_CLOSERS}])$")
"""Where a small letter behind tells that the sentence goes on: at 5 p.m. today; well... maybe; "why?" she asked."""
_OWN_LINE = re.compile(r"^(?:>|#{1,6} |[-*+] |\d{1,3}[.)] |\||```|~~~).*\n", re.MULTILINE)
"""A heading, an item, a row: what is read as one, whether it ends in a full stop or not."""
_WHOLE_LINE = ("|", "```", "~~~")
"""What begins a line that is only understood as a whole."""
_WORD = re.compile(r"\w[\w'’-]*")


def speakable_pieces(text: str, options: TextOptions) -> list[str]:
    """The pieces that an input is spoken in, each at most `max_piece_chars` long; none if it holds nothing to speak.

    `normalise` is decided here: `auto` is off (`Settings.text_front` says when it is on).
    """
    cleaned = tidy(text)
    if options.strip_markdown:
        cleaned = strip_markdown(cleaned)
    if options.strip_emoji:
        cleaned = strip_emoji(cleaned)
    cleaned = close_paragraphs(tidy(cleaned))
    if options.normalise == "on":
        cleaned = close_word(normalise(cleaned))
    return [piece for piece in cut(cleaned, options.max_piece_chars) if is_speakable(piece)]


def close_word(text: str) -> str:
    """A word alone with a full stop: a voice takes it for the beginning of a sentence, and goes on by itself."""
    return text + "." if _WORD.fullmatch(text) else text


def tidy(text: str) -> str:
    """Text without control characters, its white space single: spaces, line ends, blank lines between paragraphs."""
    return squeeze("\n".join(without_control(text).splitlines())).strip()


def squeeze(text: str) -> str:
    """Text whose white space is single, outer white space included. Squeezing it with more text behind it is the same
    as squeezing the whole.
    """
    for run, single in ((_SPACES, " "), (_LINE_END, "\n"), (_BLANK_LINES, "\n\n")):
        text = run.sub(single, text)
    return text


def without_control(text: str) -> str:
    """Text without characters that are neither seen nor heard."""
    return _CONTROL.sub("", text)


def is_speakable(text: str) -> bool:
    """Whether there is a letter or a digit of any script."""
    return any(character.isalnum() for character in text)


def close_paragraphs(text: str) -> str:
    """Tidy text whose paragraphs are sentences, so that a title is not run together with what it heads."""
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
    text = strip_links(text)
    for span in _SPANS:
        text = span.sub(r"\g<text>", text)
    text = _BLOCK.sub(lambda block: _as_sentence(_CLOSING_HASHES.sub("", block["line"])), text)
    return _UNPAIRED.sub("", text)


def strip_links(text: str) -> str:
    """Text with the texts of its links and pictures in their place."""
    return _LINK.sub(r"\g<text>", text)


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


def ends_sentence(piece: str) -> bool:
    """Whether a piece was cut behind a sentence, rather than behind a clause or a word."""
    return _SENTENCE_CLOSED.search(piece) is not None and not _abbreviates(piece, len(piece))


def closed_chars(text: str) -> int:
    """How many characters at the start of a growing text can be no part of a link that is not complete yet."""
    match = _OPEN_LINK.search(text)
    assert match is not None  # It matches nothing, at the end.
    return match.start()


def ready_chars(text: str, max_chars: int) -> int:
    """How many characters at the start of a growing text are ready to be spoken, whatever comes behind; 0 if none.

    That is the first sentence, line of its own or paragraph, as soon as the text behind shows that it ends there; where
    `max_chars` hold none, as much as `cut` would take. The text is squeezed and has no white space in front.
    """
    window = text[: max_chars + _LOOK_AHEAD_CHARS]
    full = len(window) == max_chars + _LOOK_AHEAD_CHARS
    sentences = (match.end() for match in _SENTENCE_END.finditer(window))
    lines = (match.end() for match in _OWN_LINE.finditer(window))
    for end in sorted({*sentences, *lines}):
        if end <= max_chars and _ends_sentence(window, end):
            return end
    return _last_border(window, max_chars) if full else 0


def _ends_sentence(window: str, end: int) -> bool:
    """Whether one ends here, as far as the window shows. What it cannot show yet is a later call's to say: behind an
    undecided end there is white space alone, so that nothing else ends there in the meantime.
    """
    if window[end - 1] == "\n":
        return True
    if end == len(window) or window.startswith(_WHOLE_LINE, window.rfind("\n", 0, end) + 1):
        return False
    if window.startswith("\n\n", end):
        return True
    if _MAY_GO_ON.search(window, 0, end):
        behind = window[end:].lstrip()
        return bool(behind) and not behind[0].islower()
    return not _abbreviates(window, end)
