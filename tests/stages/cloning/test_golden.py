"""Cloning gives what the reference gives, from the recording to the waveform."""

import numpy as np
import pytest
import torch

from duotone.stages.cloning.codec_encoder import CodecEncoder, Transformer
from duotone.stages.cloning.config import CodecEncoderConfig, SpeakerEncoderConfig
from duotone.stages.cloning.speaker_encoder import SpeakerEncoder, log_mel, mel_bands
from duotone.stages.code2wav.decoder import load_decoder
from duotone.stages.messages import Speak
from duotone.stages.pipeline import TalkerOptions
from duotone.stages.talker.prompt import Reference, Transcript
from duotone.stages.talker.tokenizer import Tokenizer
from duotone.stages.talker.torch_engine import TorchTalkerEngine
from duotone.stages.types import SAMPLES_PER_FRAME

from ...golden_outputs import GOLDEN, Spoken, recording, spoken_cases
from ..talker.driving import alone
from .recordings import stored

FOLDER = GOLDEN / "base"
CASES = spoken_cases("base")


@pytest.fixture(scope="module")
def talker(base):
    return TorchTalkerEngine(base, TalkerOptions(slots=2, max_positions=160))


@pytest.fixture(scope="module")
def speak(base, encoders):
    tokenizer = Tokenizer(base)

    def speak(case: Spoken) -> Speak:
        heard = encoders.listen(stored(recording(case.ref_audio)), 30)
        transcript = None if case.x_vector_only else Transcript(case.ref_text, heard.frames())
        return Speak(1, case.plan(base, tokenizer, Reference(heard.vector(), transcript)), case.sampling)

    return speak


@pytest.mark.parametrize("number", range(6))
def test_frames_are_the_references_and_the_x_vector_is_to_rounding(encoders, number):
    heard = encoders.listen(stored(recording(f"ref_{number}.npy")), 30)
    with np.load(FOLDER / "references.npz") as reference:
        assert np.array_equal(heard.frames(), reference[f"codes_{number}"])
        assert np.allclose(heard.vector(), reference[f"x_vector_{number}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_greedy_codes_of_a_cloned_voice_are_the_references(talker, speak, case):
    assert np.array_equal(alone(talker, speak(case)), case.codes)


@pytest.mark.parametrize("name", ["base_00", "base_02", "base_05"])
def test_the_waveform_behind_the_recording_s_frames_is_the_references(base, speak, name):
    decoder = load_decoder(base.codec, base.codec_weights, torch.float32, "cpu")
    case = next(case for case in CASES if case.name == name)
    reference = np.frombuffer(speak(case).plan.reference_frames, "<i2").reshape(-1, 16)
    assert len(reference) == (0 if case.x_vector_only else 13)
    with np.load(FOLDER / f"{name}.npz") as arrays:
        codes = torch.from_numpy(np.concatenate((reference, arrays["codes"])).astype(np.int64))
        with torch.inference_mode():
            made = decoder(codes[None])[0, len(reference) * SAMPLES_PER_FRAME :].numpy()
        assert np.allclose(made, arrays["wav"], rtol=0, atol=2e-5)


def test_the_encoder_looks_back_no_further_than_its_window():
    torch.manual_seed(3)
    config = CodecEncoderConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8, sliding_window=10
    )
    transformer = Transformer(config)
    one = torch.randn(1, 40, 16)
    other = torch.cat((torch.randn(1, 10, 16), one[:, 10:]), dim=1)
    with torch.inference_mode():
        differ = (transformer(one) - transformer(other)).abs().amax(dim=(0, 2)) > 1e-6
    assert differ.tolist() == [True] * 19 + [False] * 21


def test_silence_is_at_the_floor_of_the_spectrogram():
    assert torch.allclose(log_mel(torch.zeros(24_000), mel_bands(128)), torch.tensor(1e-5).log())


def test_the_published_sizes_are_the_defaults():
    with torch.device("meta"):
        codec, speaker = CodecEncoder(CodecEncoderConfig()), SpeakerEncoder(SpeakerEncoderConfig(enc_dim=2048))
    assert {name: tuple(tensor.shape) for name, tensor in codec.named_parameters()}.items() >= {
        "encoder.layers.0.conv.weight": (64, 1, 7),
        "encoder.layers.12.conv.weight": (1024, 512, 16),
        "encoder.layers.14.conv.weight": (512, 1024, 3),
        "encoder_transformer.layers.7.mlp.fc1.weight": (2048, 512),
        "downsample.conv.weight": (512, 512, 4),
        "quantizer.acoustic_residual_vector_quantizer.layers.14.codebook.embed_sum": (2048, 256),
    }.items()
    assert speaker.fc.weight.shape == (2048, 3072, 1)
