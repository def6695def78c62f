"""Reading a checkpoint directory in the published format into typed configuration, checked before any worker starts.

Everything that is wrong with a checkpoint is a CheckpointError that names the file and the key. No torch here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .architecture import CodecConfig, TalkerConfig
from .types import Sampling

Kind = Literal["custom_voice", "voice_design", "base"]


@dataclass(frozen=True)
class TextTokens:
    """Ids of the control tokens in the text vocabulary."""

    im_start_token_id: int
    im_end_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    tts_pad_token_id: int


@dataclass(frozen=True)
class Checkpoint:
    """What the configuration files of a checkpoint directory say.

    `sampling` holds the defaults of generation_config.json (its `seed` means nothing); temperature 0 where they say greedy.
    """

    directory: Path
    model_type: str
    kind: Kind
    size: str
    text_tokens: TextTokens
    talker: TalkerConfig
    codec: CodecConfig
    sampling: Sampling
