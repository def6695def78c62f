"""A request's prompt as integers. The API process builds it; torch has no place here.

Each position has a text term (above) and mostly a codec term (below). With a known language and non-streaming text:

    instruction  role ×3  tts_pad  tts_pad    tts_pad   tts_pad    tts_pad  tts_bos  text …  tts_eos  tts_pad
    –            –        think    think_bos  language  think_eos  speaker  pad      pad …   pad      bos

Streaming text has one row, the first id and bos, behind the tag; the other ids and tts_eos become trailing text.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..checkpoint import Checkpoint
from ..errors import RequestError
from ..types import CODEBOOKS, NO_CODE, PromptPlan
from .tokenizer import Tokenizer

AUTO_LANGUAGE = "auto"
DIALECT_SUFFIX = "_dialect"
DIALECT_LANGUAGES = frozenset({AUTO_LANGUAGE, "chinese"})
"""The languages in which a voice that speaks a dialect speaks it."""


@dataclass(frozen=True)
class Transcript:
    """A recording as the prompt holds it in in-context mode: what is said, and its frames, int16 [frames, 16]."""

    text: str
    frames: npt.NDArray[np.int16]


@dataclass(frozen=True)
class Reference:
    """The voice to clone: its x-vector, float32 [hidden], and in in-context mode the transcript."""

    x_vector: npt.NDArray[np.float32]
    transcript: Transcript | None = None


Row = tuple[int, ...]
"""One position: a text id, and the ids of some codebooks from 0 on."""


def build_plan(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    text: str,
    *,
    language: str = AUTO_LANGUAGE,
    speaker: str | None = None,
    instruction: str | None = None,
    non_streaming: bool | None = None,
    reference: Reference | None = None,
) -> PromptPlan:
    """The prompt of one request; names are the checkpoint's own, outer white space is no part of a text. Any thread.

    `speaker` is for custom_voice checkpoints, `instruction` for those that take one, `reference` for base ones, which
    need it. `non_streaming` puts the whole text into the prompt; None is the default of the checkpoint's kind. Raises
    RequestError that names the field.
    """
    text_ids = tokenizer.encode(text.strip())
    if not text_ids:
        raise RequestError("there is nothing to say", "input")
    if reference is not None and len(reference.x_vector) != checkpoint.talker.hidden_size:
        raise RequestError("the voice was uploaded to another model", "voice")
    if non_streaming is None:
        non_streaming = not checkpoint.clones
    front = [*_instruction(checkpoint, tokenizer, instruction), *tokenizer.role_ids]
    head: list[Row] = [(text_id,) for text_id in front]
    head += _tag(checkpoint, _language_id(checkpoint, language, speaker), speaker, with_x_vector=reference is not None)
    if reference is None or reference.transcript is None:
        body, trailing = _plain_text(checkpoint, text_ids, non_streaming)
    else:
        ref_ids = tokenizer.encode(reference.transcript.text.strip())
        body, trailing = _in_context(checkpoint, ref_ids + text_ids, reference.transcript.frames, non_streaming)
    if reference is None:
        return PromptPlan(_pack(head + body), trailing)
    # The tag ends with the speaker's position and pad.
    return PromptPlan(_pack(head + body), trailing, reference.x_vector.astype("<f4").tobytes(), len(head) - 2)


def _language_id(checkpoint: Checkpoint, language: str, speaker: str | None) -> int | None:
    """The codec id of a language, of the dialect where the speaker speaks one, None where the model shall find out."""
    ids = checkpoint.talker.codec_language_id
    dialect = checkpoint.talker.spk_is_dialect.get(speaker, False) if speaker is not None else False
    if isinstance(dialect, str) and language.lower() in DIALECT_LANGUAGES:
        return ids[dialect]
    return None if language == AUTO_LANGUAGE else ids[language]


def _instruction(checkpoint: Checkpoint, tokenizer: Tokenizer, instruction: str | None) -> list[int]:
    """`<|im_start|>user\\n{instruction}<|im_end|>\\n`: text ids of positions without codec terms."""
    if instruction is None:
        return []
    tokens = checkpoint.text_tokens
    inside = tokenizer.encode(f"user\n{instruction.strip()}")
    return [tokens.im_start_token_id, *inside, tokens.im_end_token_id, *tokenizer.encode("\n")]


def _tag(checkpoint: Checkpoint, language_id: int | None, speaker: str | None, with_x_vector: bool) -> list[Row]:
    """Language and speaker. An x-vector's position has no code: the engine adds the vector there."""
    talker = checkpoint.talker
    if language_id is None:
        ids = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    else:
        ids = [talker.codec_think_id, talker.codec_think_bos_id, language_id, talker.codec_think_eos_id]
    if speaker is not None:
        ids.append(talker.spk_id[speaker])
    tokens = checkpoint.text_tokens
    rows: list[Row] = [(tokens.tts_pad_token_id, code) for code in ids]
    if with_x_vector:
        rows.append((tokens.tts_pad_token_id,))
    return [*rows, (tokens.tts_bos_token_id, talker.codec_pad_id)]


def _plain_text(checkpoint: Checkpoint, text_ids: list[int], non_streaming: bool) -> tuple[list[Row], list[int]]:
    """The rows behind the tag, and the trailing text ids."""
    talker, tokens = checkpoint.talker, checkpoint.text_tokens
    if not non_streaming:
        return [(text_ids[0], talker.codec_bos_id)], [*text_ids[1:], tokens.tts_eos_token_id]
    rows = [(text_id, talker.codec_pad_id) for text_id in (*text_ids, tokens.tts_eos_token_id)]
    return [*rows, (tokens.tts_pad_token_id, talker.codec_bos_id)], []


def _in_context(
    checkpoint: Checkpoint, spoken_ids: list[int], frames: npt.NDArray[np.int16], non_streaming: bool
) -> tuple[list[Row], list[int]]:
    """The rows behind the tag that hold a recording, and the trailing text ids.

    `spoken_ids` are the recording's and the text's. Non-streaming: the one behind the other; streaming: side by side.
    """
    talker, tokens = checkpoint.talker, checkpoint.text_tokens
    text_ids = [*spoken_ids, tokens.tts_eos_token_id]
    heard: list[tuple[int, ...]] = [(talker.codec_bos_id,), *map(tuple, frames.tolist())]
    if non_streaming:
        rows: list[Row] = [(text_id, talker.codec_pad_id) for text_id in text_ids]
        return rows + [(tokens.tts_pad_token_id, *codes) for codes in heard], []
    padding = [tokens.tts_pad_token_id] * (len(heard) - len(text_ids))
    beside = zip((*text_ids, *padding), heard, strict=False)
    return [(text_id, *codes) for text_id, codes in beside], text_ids[len(heard) :]


def _pack(rows: Iterable[Row]) -> bytes:
    """The rows of a PromptPlan."""
    packed = [(*row, *(NO_CODE,) * (1 + CODEBOOKS - len(row))) for row in rows]
    return np.array(packed, dtype="<i4").tobytes()
