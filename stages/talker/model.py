"""The Talker's parameters under their published names after `talker.`, and how its inputs are made of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import TalkerConfig
from ..checkpoint import Checkpoint
from ..types import CODEBOOKS
from .decoder import Attend, Decoder, Rope, causal

PREFIX = "talker."


class Backbone(Decoder):
    """`model`: the decoder, the text embedding and the embedding of codebook 0 and the control ids."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)


class TextProjection(nn.Module):
    """`text_projection`: from the text embedding's size to the Talker's."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[…, text hidden] → […, hidden]."""
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class PredictorDecoder(Decoder):
    """`code_predictor.model`: the decoder and the embeddings of codebooks 1 … 15, which are Talker-sized."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config.code_predictor_config)
        entries = config.code_predictor_config.vocab_size
        self.codec_embedding = nn.ModuleList(nn.Embedding(entries, config.hidden_size) for _ in range(CODEBOOKS - 1))


class CodePredictor(nn.Module):
    """`code_predictor`, as published: the small decoder that completes a frame, codebooks 1 … 15.

    Its sequence has exactly 16 positions: the Talker's hidden state, then codes 0 … 14; position i ≥ 1 reads code i
    through `lm_head[i − 1]`. Every input is Talker-sized, projected where the sizes differ.
    """

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


class Talker(nn.Module):
    """The whole Talker."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.text_projection = TextProjection(config)
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)

    @classmethod
    def load(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> "Talker":
        """The Talker of a checkpoint, for inference. Raises CheckpointError."""
        with torch.device("meta"):  # no time is spent on weights that are replaced at once
            talker = cls(checkpoint.talker)
        return checkpoint.weights.fill(talker, PREFIX, dtype, str(device))

    def embed_text(self, text_ids: Tensor) -> Tensor:
        """Text terms, [..., hidden], of integer ids [...]."""
        return self.text_projection(self.model.text_embedding(text_ids))

    def code_table(self) -> Tensor:
        """The code embeddings of all 16 codebooks in one table, behind them a row of zeros: [V + 15 · C + 1, hidden].

        `code_offsets` says where a codebook begins; the last row stands for NO_CODE.
        """
        books = self.code_predictor.embedding_tables().flatten(0, 1)
        return torch.cat((self.model.codec_embedding.weight, books, books.new_zeros(1, books.shape[1])))

    def forward(self, inputs: Tensor, rope: Rope, attend: Attend = causal) -> tuple[Tensor, Tensor]:
        """Hidden states [batch, positions, hidden] and logits of code 0 [batch, positions, V] of embedded inputs."""
        hidden = self.model(inputs, rope, attend)
        return hidden, self.codec_head(hidden)


def code_offsets(config: TalkerConfig) -> Tensor:
    """int64 [16]: the row of `Talker.code_table` at which each codebook begins."""
    entries = config.code_predictor_config.vocab_size
    return torch.tensor([0] + [config.vocab_size + book * entries for book in range(CODEBOOKS - 1)])
