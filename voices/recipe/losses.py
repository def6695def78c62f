"""What the codec is trained against: mel spectrograms at several resolutions, and discriminators over spectrograms and
periods.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sizes import SAMPLE_RATE

QUIET_DB = -75.0


def _mel_filters(n_fft: int, bands: int) -> Tensor:
    """Triangular filters [bands, n_fft // 2 + 1], evenly spaced on the mel scale (HTK), 0 to half the sample rate."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700))
    edges = 700 * (10 ** (torch.linspace(0, 1, bands + 2) * top / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    rise = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    filters = torch.minimum(rise, fall).clamp_min(0)
    return filters / filters.sum(1, keepdim=True).clamp_min(1e-3)


class MelSpectrogram(nn.Module):
    """Samples [B, S] → mean magnitudes [B, bands, frames], float32."""

    def __init__(self, n_fft: int, hop: int, bands: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("filters", _mel_filters(n_fft, bands), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        spectrum = torch.stft(
            samples, self.n_fft, self.hop, window=self.window, return_complex=True, pad_mode="constant"
        )
        return self.filters @ (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()


class MelLoss(nn.Module):
    """Mean absolute difference of log mel magnitudes, over resolutions from 5 to 85 ms.

    A constant keeps the logarithm from falling much below noise of `QUIET_DB`: without it nineteen twentieths of the
    gradient came from silence that nobody can hear.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = ((128, 12), (256, 24), (512, 48), (1024, 96), (2048, 160))
        self.spectrograms = nn.ModuleList(MelSpectrogram(n_fft, n_fft // 4, bands) for n_fft, bands in sizes)

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        total = made.new_zeros(())
        for mel in self.spectrograms:
            ours, theirs = mel(made), mel(real)
            quiet = 10 ** (QUIET_DB / 20) * (0.375 * mel.n_fft) ** 0.5  # 0.375: the window's mean square
            total = total + F.l1_loss((ours + quiet).log10(), (theirs + quiet).log10())
            total = total + 0.1 * F.l1_loss(ours, theirs)
        return total / len(self.spectrograms)


def wave_loss(made: Tensor, real: Tensor) -> Tensor:
    """Mean absolute difference of samples [B, S] below about 2.5 kHz, relative to the real ones.

    Higher up the codes do not tell the phase, and the best guess at a waveform of unknown phase is silence.
    """
    ours, theirs = (F.avg_pool1d(samples.unsqueeze(1), 6, 3) for samples in (made, real))
    return F.l1_loss(ours, theirs) / theirs.abs().mean().clamp_min(1e-3)


def _judge(x: Tensor, layers: nn.ModuleList, score: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """A discriminator's scores of x, and what each of its layers made on the way."""
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return score(x), features


class SpectrumDiscriminator(nn.Module):
    """Convolutions over one STFT with its magnitudes compressed, and their logarithm.

    Weak bands count as well as strong ones: from the plain STFT it could barely tell made from real.
    """

    def __init__(self, n_fft: int, channels: int = 32) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        shapes = (
            (3, channels, (3, 7), (1, 2)),
            (channels, channels, (3, 7), (1, 2)),
            (channels, channels, (3, 7), (1, 2)),
            (channels, channels, (3, 3), (1, 1)),
        )
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(
                nn.Conv2d(i, o, kernel, stride, padding=(kernel[0] // 2, kernel[1] // 2))
            )
            for i, o, kernel, stride in shapes
        )
        self.score = nn.utils.parametrizations.weight_norm(nn.Conv2d(channels, 1, (3, 3), padding=1))

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(samples.device.type, enabled=False):
            spectrum = torch.stft(
                samples, self.n_fft, self.n_fft // 4, window=self.window, return_complex=True, pad_mode="constant"
            )
            x = torch.view_as_real(spectrum).permute(0, 3, 2, 1) * (4 / self.n_fft**0.5)
            power = x.square().sum(1, keepdim=True) + 1e-6
            x = torch.cat((x * power**-0.35, 0.25 * power.log10() + 0.5), 1)
        x = x.contiguous(memory_format=torch.channels_last)
        return _judge(x, self.layers, self.score)


class PeriodDiscriminator(nn.Module):
    """Convolutions over the waveform folded at one period."""

    def __init__(self, period: int, widths: tuple[int, ...] = (16, 64, 192, 256)) -> None:
        super().__init__()
        self.period = period
        pairs = zip((1, *widths), widths, strict=False)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), padding=(2, 0))) for i, o in pairs
        )
        self.score = nn.utils.parametrizations.weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = 8 * samples[:, : samples.shape[1] // self.period * self.period].unflatten(1, (-1, self.period))[:, None]
        x = x.contiguous(memory_format=torch.channels_last)
        return _judge(x, self.layers, self.score)


class Discriminators(nn.Module):
    """All of them over [B, S]: a list of (scores, features)."""

    def __init__(self) -> None:
        super().__init__()
        spectra = [SpectrumDiscriminator(n_fft) for n_fft in (2048, 1024, 512, 256)]
        self.parts = nn.ModuleList([*spectra, *(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11))])

    def forward(self, samples: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        return [part(samples) for part in self.parts]


def discriminator_loss(real: list[tuple[Tensor, list[Tensor]]], made: list[tuple[Tensor, list[Tensor]]]) -> Tensor:
    """Least squares: real 1, made 0."""
    terms = [
        (1 - r.float()).square().mean() + m.float().square().mean() for (r, _), (m, _) in zip(real, made, strict=True)
    ]
    return torch.stack(terms).mean()


def generator_loss(
    real: list[tuple[Tensor, list[Tensor]]], made: list[tuple[Tensor, list[Tensor]]]
) -> tuple[Tensor, Tensor]:
    """(adversarial, feature matching relative to the features' own size)."""
    adversarial = torch.stack([(1 - m.float()).square().mean() for m, _ in made]).mean()
    matching = [
        F.l1_loss(m.float(), r.detach().float()) / r.detach().float().abs().mean().clamp_min(1e-3)
        for (_, real_features), (_, made_features) in zip(real, made, strict=True)
        for r, m in zip(real_features, made_features, strict=True)
    ]
    return adversarial, torch.stack(matching).mean()
