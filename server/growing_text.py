"""A text that comes in parts, as a language model writes it, cut into pieces that are spoken while it still grows."""

from .config import TextOptions
from .text import closed_chars, ready_chars, speakable_pieces, squeeze, strip_links, without_control

_LINE_ENDS = str.maketrans({"\r": " ", "\u2028": "\n", "\u2029": "\n\n"})
"""One character at a time: a line end may come in two parts."""


class GrowingText:
    """Every piece is a sentence, a line of its own (a heading, an item) or a paragraph, or as much as fits in one.

    A piece is given out as soon as no later text can change it. So the pieces depend on the text alone, never on the
    parts in which it came.
    """

    def __init__(self, options: TextOptions) -> None:
        self._options = options
        self._rest = ""
        """Squeezed, without links: what is not given out yet."""
        self._held = ""
        """What follows, as it came: it may be a link, only half here."""

    def __len__(self) -> int:
        """Characters that wait for more text."""
        return len(self._rest) + len(self._held)

    def add(self, text: str) -> list[str]:
        """The pieces that are ready now, after more text."""
        self._held += without_control(text.translate(_LINE_ENDS))
        self._take(closed_chars(self._held) if self._options.strip_markdown else len(self._held))
        pieces: list[str] = []
        while ready := ready_chars(self._rest, self._options.max_piece_chars):
            pieces += speakable_pieces(self._rest[:ready], self._options)
            self._rest = self._rest[ready:].lstrip()
        return pieces

    def flush(self) -> list[str]:
        """The pieces of all that is left, as if the text ended here."""
        self._take(len(self._held))
        pieces = speakable_pieces(self._rest, self._options)
        self.clear()
        return pieces

    def clear(self) -> None:
        """Forget what is left."""
        self._rest = self._held = ""

    def _take(self, chars: int) -> None:
        """Move so many of the characters held to the rest."""
        text, self._held = self._held[:chars], self._held[chars:]
        if self._options.strip_markdown:
            text = strip_links(text)
        self._rest = squeeze(self._rest + text).lstrip()
