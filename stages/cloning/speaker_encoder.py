"""A recording → its x-vector: log-mel spectrogram and ECAPA-TDNN, under the published parameter names."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import SAMPLE_RATE
from .config import SpeakerEncoderConfig

WINDOW_SAMPLES = 1024
HOP_SAMPLES = 256
MAGNITUDE_EPSILON = 1e-9
MEL_FLOOR = 1e-5
VARIANCE_FLOOR = 1e-12


def mel_bands(bands: int) -> Tensor:
    """Slaney's triangles of unit area from 0 Hz to half the sample rate: float32 [bands, WINDOW_SAMPLES / 2 + 1].

    His scale is linear up to 1 kHz, which is 15 mel, and logarithmic above it.
    """
    octave_like = np.log(6.4) / 27
    top_mel = 15 + np.log(SAMPLE_RATE / 2 / 1000) / octave_like
    mels = np.linspace(0, top_mel, bands + 2)
    corners_hz = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * octave_like))
    bins_hz = np.fft.rfftfreq(WINDOW_SAMPLES, 1 / SAMPLE_RATE)
    low, middle, high = (corners_hz[start : start + bands, None] for start in range(3))
    triangles = np.minimum((bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle)).clip(min=0)
    return torch.from_numpy(triangles * 2 / (high - low)).float()


def log_mel(samples: Tensor, bands: Tensor) -> Tensor:
    """float32 [samples] at 24 kHz → [bands, frames], a frame every HOP_SAMPLES."""
    edge = (WINDOW_SAMPLES - HOP_SAMPLES) // 2
    padded = F.pad(samples[None, None], (edge, edge), mode="reflect")[0, 0]
    window = torch.hann_window(WINDOW_SAMPLES)
    spectrum = torch.stft(padded, WINDOW_SAMPLES, HOP_SAMPLES, window=window, center=False, return_complex=True)
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + MAGNITUDE_EPSILON).sqrt()
    return (bands @ magnitude).clamp(min=MEL_FLOOR).log()


def _same_conv(in_channels: int, out_channels: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    """As many frames out as in; the edges are mirrored."""
    return nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    """Convolution and ReLU: [1, in, frames] → [1, out, frames]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _same_conv(in_channels, out_channels, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """The channels in `scale` groups: the first as it is, each other one convolved together with the one before."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        width = channels // scale
        self.blocks = nn.ModuleList(TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = x.chunk(self.scale, dim=1)
        made = [first]
        for block, group in zip(self.blocks, groups, strict=True):
            made.append(block(group if len(made) == 1 else group + made[-1]))
        return torch.cat(made, dim=1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by what all of them are on average."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _same_conv(channels, squeezed)
        self.conv2 = _same_conv(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=2, keepdim=True)
        return x * self.conv2(F.relu(self.conv1(mean))).sigmoid()


class Block(nn.Module):
    """TimeDelay, Res2Net, TimeDelay, SqueezeExcitation, added to the input."""

    def __init__(self, config: SpeakerEncoderConfig, layer: int) -> None:
        super().__init__()
        channels, kernel = config.enc_channels[layer], config.enc_kernel_sizes[layer]
        self.tdnn1 = TimeDelay(config.enc_channels[layer - 1], channels)
        self.res2net_block = Res2Net(channels, config.enc_res2net_scale, kernel, config.enc_dilations[layer])
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class AttentivePooling(nn.Module):
    """Mean and deviation over time, weighted by attention: [1, channels, frames] → [1, 2 · channels]."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention_channels)
        self.conv = _same_conv(attention_channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        whole = self._statistics(x, even).unsqueeze(2).expand(-1, -1, x.shape[2])
        weights = self.conv(self.tdnn(torch.cat((x, whole), dim=1)).tanh()).softmax(dim=2)
        return self._statistics(x, weights)

    def _statistics(self, x: Tensor, weights: Tensor) -> Tensor:
        mean = (weights * x).sum(2)
        variance = (weights * (x - mean.unsqueeze(2)).square()).sum(2)
        return torch.cat((mean, variance.clamp(min=VARIANCE_FLOOR).sqrt()), dim=1)


class SpeakerEncoder(nn.Module):
    """float32 [samples] at 24 kHz → the x-vector, float32 [enc_dim]."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        channels = config.enc_channels
        first = TimeDelay(config.mel_dim, channels[0], config.enc_kernel_sizes[0], config.enc_dilations[0])
        self.blocks = nn.ModuleList([first, *(Block(config, layer) for layer in range(1, len(channels) - 1))])
        self.mfa = TimeDelay(channels[-1], channels[-1], config.enc_kernel_sizes[-1], config.enc_dilations[-1])
        self.asp = AttentivePooling(channels[-1], config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels[-1], config.enc_dim, 1)
        self.bands = mel_bands(config.mel_dim)

    def forward(self, samples: Tensor) -> Tensor:
        first, *blocks = self.blocks
        hidden = first(log_mel(samples, self.bands).unsqueeze(0))
        made = []
        for block in blocks:
            hidden = block(hidden)
            made.append(hidden)
        return self.fc(self.asp(self.mfa(torch.cat(made, dim=1))).unsqueeze(2))[0, :, 0]
