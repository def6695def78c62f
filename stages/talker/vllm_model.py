"""The Talker as a model of stock vLLM: its Qwen3 backbone with a codec head, and the parts that complete a frame.

`register` is the entry point (group `vllm.general_plugins`). Nothing in vLLM is patched: a configuration parser tells
it of the backbone alone, and `get_model_state_cls` hangs the rest on Model Runner V2.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig, Qwen3Config
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.transformers_utils.config import register_config_parser
from vllm.transformers_utils.config_parser_base import ConfigParserBase

from ..architecture import TalkerConfig
from ..checkpoint import read_checkpoint
from .frames import FrameWeights
from .model import CodePredictor, TextProjection
from .vllm_state import TalkerModelState

ARCHITECTURE = "DuotoneTalker"
CONFIG_FORMAT = "duotone"
SMALLEST_HEAD = 32
"""vLLM's attention kernels take no smaller heads; such are spread over larger ones."""
MAX_POSITIONS = 32_768
"""Length of vLLM's table of rotary angles, the limit of `max_positions`."""


class TalkerConfigParser(ConfigParserBase):
    """Shows vLLM the backbone as the plain Qwen3 decoder that it is, whatever the checkpoint's own model type.

    Plain RoPE: the published `rope_scaling` names an mrope whose rows are all equal, for which vLLM would demand more.
    """

    def parse(self, model: str | Path, *_: object, **__: object) -> tuple[dict[str, object], PretrainedConfig]:
        """The configuration as a dictionary and as an object. Raises CheckpointError."""
        talker = read_checkpoint(Path(model)).talker
        config = Qwen3Config(
            architectures=[ARCHITECTURE],
            vocab_size=talker.vocab_size,
            hidden_size=talker.hidden_size,
            intermediate_size=talker.intermediate_size,
            num_hidden_layers=talker.num_hidden_layers,
            num_attention_heads=talker.num_attention_heads,
            num_key_value_heads=talker.num_key_value_heads,
            head_dim=talker.head_dim * head_factor(talker),
            rms_norm_eps=talker.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": talker.rope_theta},
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        return config.to_dict(), config


class TalkerForVllm(Qwen3ForCausalLM):
    """vLLM's Qwen3, whose token embedding is the codec embedding and whose head is the codec head.

    The text side and the code predictor are submodules under their published names, run by TalkerModelState.
    """

    published_to_vllm = WeightsMapper(
        orig_to_new_prefix={
            "talker.model.codec_embedding.": "model.embed_tokens.",
            "talker.model.text_embedding.": "text_embedding.",
            "talker.text_projection.": "text_projection.",
            "talker.code_predictor.": "code_predictor.",
            "talker.codec_head.": "lm_head.",
            "talker.model.": "model.",
            "speaker_encoder.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        checkpoint = read_checkpoint(Path(vllm_config.model_config.model))
        self.talker_config = checkpoint.talker
        self.text_tokens = checkpoint.text_tokens
        self.text_embedding = nn.Embedding(checkpoint.talker.text_vocab_size, checkpoint.talker.text_hidden_size)
        self.text_projection = TextProjection(checkpoint.talker)
        self.code_predictor = CodePredictor(checkpoint.talker)
        for layer in self.model.layers:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.variance_epsilon /= head_factor(checkpoint.talker)

    @staticmethod
    def get_model_state_cls() -> type[TalkerModelState]:
        """Model Runner V2 asks for the class that prepares inputs and wraps the sampler."""
        return TalkerModelState

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The hidden states themselves: the sampler, which gets them, computes logits where it draws."""
        return hidden_states

    def take_frame_weights(self) -> FrameWeights:
        """What making frames reads, as it reads it; the modules that held it are freed. Call it once."""
        weights = FrameWeights.of(
            self.talker_config,
            self.lm_head.weight[: self.talker_config.vocab_size].detach(),
            self.model.embed_tokens.weight[: self.talker_config.vocab_size].detach(),
            self.text_embedding.weight.detach(),
            self.text_projection,
            self.code_predictor,
        )
        del self.text_embedding, self.text_projection, self.code_predictor
        return weights

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the published tensors; returns the names of the parameters that were filled."""
        factor = head_factor(self.talker_config)
        spread = ((name, spread_heads(name, tensor, factor)) for name, tensor in weights)
        return AutoWeightsLoader(self).load_weights(spread, mapper=self.published_to_vllm)


def head_factor(config: TalkerConfig) -> int:
    """How many times larger a head must be for vLLM; 1 for published sizes."""
    return math.ceil(SMALLEST_HEAD / config.head_dim)


def spread_heads(name: str, tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """A published tensor of the backbone for heads `factor` times as large, in which the model computes the same.

    Component i of a head becomes component factor · i, where the larger head has the same rotary angle, and zeros stand
    between. A norm over the larger head divides by a root √factor smaller, once its epsilon is `factor` times smaller;
    keys take that back in their norm's weight, and queries leave it to attention's scale, which is √factor smaller.
    """
    if factor == 1 or not name.startswith("talker.model.layers."):
        return tensor
    if name.endswith("k_norm.weight"):
        tensor = tensor / math.sqrt(factor)
    if name.endswith("o_proj.weight"):
        return _spread(tensor.T, factor).T
    inner = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight")
    return _spread(tensor, factor) if name.endswith(inner) else tensor


def _spread(tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """Rows with factor − 1 rows of zeros behind each."""
    spread = tensor.new_zeros(factor * len(tensor), *tensor.shape[1:])
    spread[::factor] = tensor
    return spread


def register() -> None:
    """Make vLLM know the model. Called in every vLLM process, possibly more than once."""
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # The class itself: a "module:Class" string would be inspected in a subprocess, half a minute of start-up.
        ModelRegistry.register_model(ARCHITECTURE, TalkerForVllm)
        register_config_parser(CONFIG_FORMAT)(TalkerConfigParser)
