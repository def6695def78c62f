"""The training-only half of the codec: an encoder over log-mel frames and the 16-level quantiser.

Neither runs in the server. The quantiser's codebooks and output projections leave for the checkpoint (`export.py`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .losses import MelSpectrogram
from .sizes import BOOKS, CODES, FRAME_SAMPLES

ENTRY = 32
LATENT = 2 * ENTRY
WIDTHS = (160, 192, 224, 256)
KERNELS = (7, 5, 3, 1)
"""Of the blocks at 10, 20, 40 and 80 ms: short where a step is long, so that codes speak of the sound here."""


class _CausalConv(nn.Conv1d):
    """A convolution that sees itself and the past."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.kernel_size[0] - 1, 0)))


class _Block(nn.Module):
    """Causal ConvNeXt over [B, C, T]."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = _CausalConv(channels, channels, kernel, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 3 * channels), nn.Linear(3 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(self.depthwise(x).transpose(1, 2))))).transpose(1, 2)


class Encoder(nn.Module):
    """Samples [B, T·1920] → latents [B, 64, T]: log-mel at 10 ms, three halvings.

    Strictly causal: a frame's codes must say nothing about later frames. With an encoder that looked ahead, the
    Talker learned to read the next
    frame off the fine codes of the last ones instead of off the text, and babbled when it had to sample them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mel = MelSpectrogram(1024, FRAME_SAMPLES // 8, 100, causal=True)
        self.first = _CausalConv(100, WIDTHS[0], 7)
        layers: list[nn.Module] = [_Block(WIDTHS[0], KERNELS[0]), _Block(WIDTHS[0], KERNELS[0])]
        for narrow, wide, kernel in zip(WIDTHS, WIDTHS[1:], KERNELS[1:], strict=False):
            layers += [nn.Conv1d(narrow, wide, 2, stride=2), _Block(wide, kernel), _Block(wide, kernel)]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Conv1d(WIDTHS[-1], LATENT, 1)

    def forward(self, samples: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(samples.device.type, enabled=False):
            features = (self.mel(samples).clamp_min(1e-5).log() + 5) / 2.5
        return self.last(self.layers(self.first(features))).float()


class Quantiser(nn.Module):
    """Book 0 of a projection of the latent, books 1 … 15 of what it leaves; exponential moving averages as codebooks.

    `sums` [16, C, 32] and `usage` [16, C] are the published `embedding_sum` and `cluster_usage`.
    """

    def __init__(self, decay: float = 0.98) -> None:
        super().__init__()
        self.decay = decay
        self.in_first, self.in_rest = nn.Linear(LATENT, ENTRY, bias=False), nn.Linear(LATENT, ENTRY, bias=False)
        self.out_first, self.out_rest = nn.Linear(ENTRY, LATENT, bias=False), nn.Linear(ENTRY, LATENT, bias=False)
        for inward, outward in ((self.in_first, self.out_first), (self.in_rest, self.out_rest)):
            nn.init.orthogonal_(inward.weight)
            outward.weight.data.copy_(inward.weight.data.T)
        self.register_buffer("sums", torch.randn(BOOKS, CODES, ENTRY) * 0.5)
        self.register_buffer("usage", torch.ones(BOOKS, CODES))

    def entries(self, book: int) -> Tensor:
        """Codebook rows [C, 32]."""
        return self.sums[book] / self.usage[book].clamp_min(1e-5)[:, None]

    def _nearest(self, book: int, x: Tensor) -> Tensor:
        """Codes [N] of vectors [N, 32]."""
        rows = self.entries(book)
        return (rows.square().sum(-1) - 2 * x @ rows.T).argmin(-1)

    @torch.no_grad()
    def _learn(self, book: int, x: Tensor, codes: Tensor, restart_below: Tensor) -> None:
        """Move the averages of `book` towards vectors [N, 32] with their codes [N]; rows used less than
        `restart_below` (a share of the even
        use, []) start again at random vectors."""
        hot = F.one_hot(codes, CODES).to(x.dtype)
        self.usage[book].lerp_(hot.sum(0), 1 - self.decay)
        self.sums[book].lerp_(hot.T @ x, 1 - self.decay)
        level = x.shape[0] / CODES
        dead = self.usage[book] < restart_below * level
        fresh = x[torch.randint(len(x), (CODES,), device=x.device)]
        self.sums[book].copy_(torch.where(dead[:, None], fresh * level, self.sums[book]))
        self.usage[book].copy_(torch.where(dead, torch.full_like(self.usage[book], level), self.usage[book]))

    def forward(
        self, latent: Tensor, depth: Tensor, restart_below: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Latents [B, 64, T] and books to keep a sequence [B] (the codebooks learn unless `restart_below` is None) →
        (quantised latents [B, 64, T], codes [B, 16, T], commitment loss, book 0's rows
        [B, T, 32]); gradients pass straight through."""
        batch, _, frames = latent.shape
        x = latent.transpose(1, 2)
        first = self.in_first(x)
        flat = first.detach().reshape(-1, ENTRY)
        codes = [self._nearest(0, flat)]
        if restart_below is not None:
            self._learn(0, flat, codes[0], restart_below)
        row = self.entries(0)[codes[0]].view_as(first)
        loss = F.mse_loss(first, row)
        first = first + (row - first).detach()
        total = self.out_first(first)
        rest = self.in_rest(x - total.detach())
        kept = torch.zeros_like(rest)
        left = rest.detach()
        for book in range(1, BOOKS):
            flat = left.reshape(-1, ENTRY)
            codes.append(self._nearest(book, flat))
            if restart_below is not None:
                self._learn(book, flat, codes[-1], restart_below)
            row = self.entries(book)[codes[-1]].view_as(left)
            kept = kept + row * (depth > book)[:, None, None]
            left = left - row
        loss = loss + (F.mse_loss(rest, kept, reduction="none").mean((1, 2)) * (depth == BOOKS)).mean()
        some = (depth > 1)[:, None, None]
        rest = torch.where(some, rest + (kept - rest).detach(), torch.zeros_like(rest))
        total = total + self.out_rest(rest)
        return total.transpose(1, 2), torch.stack(codes, 0).view(BOOKS, batch, frames).transpose(0, 1), loss, first

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, 16, T] → quantised latents [B, 64, T]."""
        first = self.out_first(self.entries(0)[codes[:, 0]])
        rest = sum((self.entries(book)[codes[:, book]] for book in range(2, BOOKS)), self.entries(1)[codes[:, 1]])
        return (first + self.out_rest(rest)).transpose(1, 2)


class PhonemeReader(nn.Module):
    """Reads the teacher's phonemes (four a frame) off book 0's rows, so that book 0 says what is spoken. Training
    only.
    """

    def __init__(self, phonemes: int, labels_per_frame: int) -> None:
        super().__init__()
        self.phonemes, self.labels_per_frame = phonemes, labels_per_frame
        self.net = nn.Sequential(nn.Linear(ENTRY, 256), nn.GELU(), nn.Linear(256, phonemes * labels_per_frame))

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Rows [B, T, 32], labels [B, T·4] → mean cross-entropy."""
        logits = self.net(rows).unflatten(-1, (self.labels_per_frame, self.phonemes)).flatten(0, 2)
        return F.cross_entropy(logits.float(), labels.flatten())
