"""The code predictor's parameters: the small decoder that completes a frame, codebooks 1 … 15.

Its sequence has exactly 16 positions: the Talker's hidden state, then codes 0 … 14; position i ≥ 1 reads code i through
`lm_head[i − 1]`. Every input is Talker-sized and goes through `small_to_mtp_projection` where the sizes differ.
"""

import torch
from torch import Tensor, nn

from ..architecture import TalkerConfig
from ..types import CODEBOOKS
from .decoder import Attend, Decoder, Rope, causal


class PredictorDecoder(Decoder):
    """`code_predictor.model`: the decoder and the embeddings of codebooks 1 … 15, which are Talker-sized."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config.code_predictor_config)
        entries = config.code_predictor_config.vocab_size
        self.codec_embedding = nn.ModuleList(nn.Embedding(entries, config.hidden_size) for _ in range(CODEBOOKS - 1))


class CodePredictor(nn.Module):
    """`code_predictor`, as published."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        predictor = config.code_predictor_config
        self.model = PredictorDecoder(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(predictor.hidden_size, predictor.vocab_size, bias=False) for _ in range(CODEBOOKS - 1)
        )
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if predictor.hidden_size != config.hidden_size:
            self.small_to_mtp_projection = nn.Linear(config.hidden_size, predictor.hidden_size)

    @property
    def projection(self) -> nn.Linear | None:
        """`small_to_mtp_projection`; None where the sizes agree, and none is stored."""
        return self.small_to_mtp_projection if isinstance(self.small_to_mtp_projection, nn.Linear) else None

    def embedding_tables(self) -> Tensor:
        """[15, entries, talker hidden]: the embeddings of codebooks 1 … 15."""
        return torch.stack([table.weight for table in self.model.codec_embedding if isinstance(table, nn.Embedding)])

    def head_weights(self) -> Tensor:
        """[15, entries, hidden]: the heads of codebooks 1 … 15."""
        return torch.stack([head.weight for head in self.lm_head if isinstance(head, nn.Linear)])

    def forward(self, inputs: Tensor, rope: Rope, attend: Attend = causal) -> Tensor:
        """Logits of codes 1 … 15, [batch, 15, entries], of whole frames.

        `inputs` is [batch, 16, talker hidden]: the Talker's hidden state, then the embeddings of codes 0 … 14.
        """
        hidden = self.model(self.small_to_mtp_projection(inputs), rope, attend)
        return torch.einsum("bph,peh->bpe", hidden[:, 1:], self.head_weights())
