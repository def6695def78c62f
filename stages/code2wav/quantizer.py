"""Codes → the sum of their codebook rows, the codec decoder's first stage."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..architecture import CodecConfig

USAGE_FLOOR = 1e-5


class Codebook(nn.Module):
    """Entries as training keeps them: a running sum of vectors and how often each was used."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(entries))
        self.embedding_sum = nn.Parameter(torch.zeros(entries, width))

    def rows(self) -> Tensor:
        """[entries, width]."""
        return self.embedding_sum / self.cluster_usage.clamp(min=USAGE_FLOOR).unsqueeze(1)


class ResidualQuantizer(nn.Module):
    """Some codebooks whose rows are added and projected. `input_proj` serves encoding alone."""

    def __init__(self, books: int, config: CodecConfig) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.input_proj = nn.Conv1d(config.codebook_dim, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)
        layers = (nn.ModuleDict({"_codebook": Codebook(config.codebook_size, width)}) for _ in range(books))
        self.vq = nn.ModuleDict({"layers": nn.ModuleList(layers)})

    def codebooks(self) -> list[Codebook]:
        """In the order of the codes."""
        return [module for module in self.vq.modules() if isinstance(module, Codebook)]

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [streams, T, books] → [streams, codebook_dim, T]."""
        rows = [F.embedding(codes[..., index], book.rows()) for index, book in enumerate(self.codebooks())]
        return self.output_proj(torch.stack(rows).sum(0).transpose(1, 2))

    def projected_rows(self) -> Tensor:
        """What each code of each book adds to the output, in float32 at least: [books · entries, codebook_dim]."""
        rows = torch.cat([book.rows() for book in self.codebooks()])
        precise = torch.promote_types(rows.dtype, torch.float32)
        return rows.to(precise) @ self.output_proj.weight.squeeze(-1).to(precise).T


class SplitQuantizer(nn.Module):
    """Codebook 0, and the sum of all others, each with its own projection."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, config)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - 1, config)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [streams, T, codebooks] → [streams, codebook_dim, T]."""
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])

    def frozen(self) -> "CodeTable":
        table = torch.cat((self.rvq_first.projected_rows(), self.rvq_rest.projected_rows())).detach()
        books = 1 + len(self.rvq_rest.codebooks())
        return CodeTable(table.to(self.rvq_first.output_proj.weight.dtype), books)


class CodeTable(nn.Module):
    """SplitQuantizer as one lookup: the projected rows of all books, [books · entries, codebook_dim]."""

    def __init__(self, table: Tensor, books: int) -> None:
        super().__init__()
        self.register_buffer("table", table)
        entries = table.shape[0] // books
        self.register_buffer("first_row", torch.arange(books, device=table.device) * entries)

    table: Tensor
    first_row: Tensor

    def forward(self, codes: Tensor) -> Tensor:
        streams, frames, _ = codes.shape
        summed = F.embedding_bag((codes + self.first_row).flatten(0, 1), self.table, mode="sum")
        return summed.view(streams, frames, -1).transpose(1, 2)
