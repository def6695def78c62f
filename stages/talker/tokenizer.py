"""The checkpoint's text tokenizer: Qwen2's byte-level BPE, without its control tokens.

Control ids stand in config.json and are placed by the prompt alone. The tokenizer knows none of them, so `<|im_end|>`
and its kind in a user's text are plain text.
"""

from pathlib import Path

import msgspec
import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from ..checkpoint import Checkpoint
from ..errors import CheckpointError

# Qwen2's split: contractions, words with one leading sign, single digits, runs of signs, line ends, other white space.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VERSION_LINE = "#version"
ASSISTANT = "assistant\n"


class Tokenizer:
    """Text to ids. Any thread."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Read vocab.json and merges.txt. Raises CheckpointError that names the file and what is wrong in it."""
        vocab_file = checkpoint.directory / "vocab.json"
        vocab = _read_vocab(vocab_file, checkpoint.talker.text_vocab_size)
        merges = _read_merges(checkpoint.directory / "merges.txt", vocab)
        self._backend = tokenizers.Tokenizer(BPE(vocab, merges))
        self._backend.normalizer = NFC()
        byte_level = ByteLevel(add_prefix_space=False, use_regex=False)
        self._backend.pre_tokenizer = Sequence([Split(tokenizers.Regex(SPLIT_PATTERN), "isolated"), byte_level])
        self.role_ids: list[int] = [checkpoint.text_tokens.im_start_token_id, *self.encode(ASSISTANT)]
        """What a text begins with, three ids: `<|im_start|>`, `assistant`, the line end."""
        if len(self.role_ids) != 3:  # other splits would be read as part of the text
            raise CheckpointError(f"{vocab_file}: {ASSISTANT!r} is not two tokens, as the prompt wants it")

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, white space and all; [] for ""."""
        return self._backend.encode(text).ids


def _read_vocab(file: Path, text_vocab_size: int) -> dict[str, int]:
    """Token → id, with every byte in it: BPE drops a byte that it does not know without a word."""
    try:
        vocab = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    for symbol in ByteLevel.alphabet():
        if symbol not in vocab:
            raise CheckpointError(f"{file}: the byte-level symbol {symbol!r} is missing")
    for token, token_id in vocab.items():
        if not 0 <= token_id < text_vocab_size:
            raise CheckpointError(f"{file}: {token!r} is {token_id}, outside text_vocab_size {text_vocab_size}")
    return vocab


def _read_merges(file: Path, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs in order of rank, one a line, behind an optional version line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith(_VERSION_LINE):
            continue
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= vocab.keys():
            raise CheckpointError(f"{file}: line {number}: {line!r} joins no two tokens of vocab.json to a third")
        merges.append((left, right))
    return merges
