"""The decoder computes what the reference does, whole or in chunks, trained or frozen, alone or among others."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from duotone.stages.architecture import CodecConfig
from duotone.stages.code2wav.chunks import SlotStates
from duotone.stages.code2wav.decoder import PREFIX, CodecDecoder
from duotone.stages.types import SAMPLES_PER_FRAME
from duotone.stages.weights import shapes

from ...golden_outputs import codec_cases

CASES = codec_cases()
CODEC_CASES = [case for case in CASES if case.name.startswith("codec")]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-9}


@pytest.fixture(scope="module", params=TOLERANCES, ids=str)
def cut(request, load):
    """(decoder, the codec cases decoded whole, tolerance) in one dtype."""
    decoder = load(request.param)
    with torch.inference_mode():
        whole = [decoder(torch.from_numpy(case.codes)[None])[0] for case in CODEC_CASES]
    return decoder, whole, TOLERANCES[request.param]


@pytest.fixture(scope="module")
def trainable(checkpoint):
    """The module as a recipe trains it."""
    decoder = checkpoint.codec_weights.fill(CodecDecoder(checkpoint.codec), PREFIX, torch.float32)
    return decoder.requires_grad_(True)


@dataclass(eq=False)
class Listener:
    """A stream on its way through the decoder: codes [frames, 16], the lengths of its chunks, what has come of it."""

    codes: torch.Tensor
    chunks: list[int]
    starts_at_step: int
    slot: int | None = None
    heard: list[torch.Tensor] = field(default_factory=list)

    def next_chunk(self):
        frames = self.chunks.pop(0)
        chunk, self.codes = self.codes[:frames], self.codes[frames:]
        return chunk


@torch.inference_mode()
def decode_together(decoder, listeners, slots, dtype):
    """Decode streams of every age beside each other: a slot goes to the next stream when one has ended."""
    states = SlotStates(decoder, slots, dtype, "cpu")
    free, step = list(range(slots)), 0
    while any(listener.chunks for listener in listeners):
        for listener in listeners:
            if listener.slot is None and free and step >= listener.starts_at_step:
                listener.slot = free.pop(0)
                states.reset(listener.slot)
        active = [listener for listener in listeners if listener.slot is not None and listener.chunks]
        for frames in {listener.chunks[0] for listener in active}:
            batch = [listener for listener in active if listener.chunks and listener.chunks[0] == frames]
            active = [listener for listener in active if listener not in batch]
            rows = torch.tensor([listener.slot for listener in batch])
            state = states.gather(rows)
            samples = decoder(torch.stack([listener.next_chunk() for listener in batch]), state)
            states.scatter(rows, state)
            for listener, heard in zip(batch, samples, strict=True):
                listener.heard.append(heard)
                if not listener.chunks:
                    free.append(listener.slot)
        step += 1
    return [torch.cat(listener.heard) for listener in listeners]


def every(frames, chunk):
    """The lengths of the chunks of a sequence that is cut at every multiple of `chunk`."""
    return [min(chunk, frames - at) for at in range(0, frames, chunk)]


def at_random(frames, rng):
    """The lengths of the chunks of a sequence that is cut anywhere."""
    cuts = rng.choice(np.arange(1, frames), size=rng.integers(0, frames), replace=False) if frames > 1 else []
    return np.diff([0, *sorted(cuts), frames]).tolist()


def worst_difference(heard, whole):
    return max((a - b).abs().max().item() for a, b in zip(heard, whole, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whole_waveform_equals_the_reference(load, case):
    with torch.inference_mode():
        samples = load(torch.float32)(torch.from_numpy(case.codes)[None])[0]
    assert samples.shape == (len(case.codes) * SAMPLES_PER_FRAME,)
    np.testing.assert_allclose(samples.numpy(), case.wav, rtol=0, atol=2e-5)


@pytest.mark.parametrize("chunk", range(1, 41))
def test_every_chunk_size_in_a_batch_of_mixed_age_equals_the_whole(cut, chunk):
    decoder, whole, tolerance = cut
    listeners = [
        Listener(torch.from_numpy(case.codes), every(len(case.codes), chunk), starts_at_step=2 * index)
        for index, case in enumerate(CODEC_CASES)
    ]
    heard = decode_together(decoder, listeners, slots=4, dtype=whole[0].dtype)
    assert worst_difference(heard, whole) <= tolerance


@pytest.mark.parametrize("seed", range(6))
def test_random_cuts_in_a_batch_of_mixed_age_equal_the_whole(cut, seed):
    decoder, whole, tolerance = cut
    rng = np.random.default_rng(seed)
    listeners = [
        Listener(torch.from_numpy(case.codes), at_random(len(case.codes), rng), int(rng.integers(0, 12)))
        for case in CODEC_CASES
    ]
    heard = decode_together(decoder, listeners, slots=5, dtype=whole[0].dtype)
    assert worst_difference(heard, whole) <= tolerance


def test_a_slot_remembers_its_last_stream_until_it_is_reset(load):
    decoder = load(torch.float32)
    states = SlotStates(decoder, 1, torch.float32, "cpu")
    rows, codes = torch.tensor([0]), torch.from_numpy(CODEC_CASES[4].codes)[None]

    def decode():
        with torch.inference_mode():
            state = states.gather(rows)
            samples = decoder(codes, state)
            states.scatter(rows, state)
        return samples

    first, continued = decode(), decode()
    states.reset(0)
    assert torch.equal(decode(), first)
    assert (continued - first).abs().max() > 0.1


def test_frozen_equals_trained(load, trainable):
    codes = torch.from_numpy(np.stack([CODEC_CASES[-1].codes[:20], CODEC_CASES[-1].codes[20:40]]))
    with torch.inference_mode():
        torch.testing.assert_close(load(torch.float32)(codes), trainable(codes), rtol=0, atol=5e-6)


def test_trainable_decoder_streams_as_well(trainable):
    codes = torch.from_numpy(CODEC_CASES[-2].codes)
    listener = Listener(codes, at_random(len(codes), np.random.default_rng(0)), 0)
    with torch.inference_mode():
        whole = trainable(codes[None])
    heard = decode_together(trainable, [listener], slots=1, dtype=torch.float32)
    assert worst_difference(heard, whole) <= 1e-5


def test_every_parameter_that_decoding_uses_can_be_trained(trainable):
    codes = torch.from_numpy(np.stack([CODEC_CASES[-1].codes[:12], CODEC_CASES[-1].codes[12:24]]))
    trainable(codes).square().mean().backward()
    untouched = {name for name, parameter in trainable.named_parameters() if parameter.grad is None}
    assert untouched == {f"quantizer.{part}.input_proj.weight" for part in ("rvq_first", "rvq_rest")}
    assert all(parameter.grad.isfinite().all() for parameter in trainable.parameters() if parameter.grad is not None)


def test_what_is_trained_has_the_published_names_and_shapes(checkpoint, trainable):
    stored = checkpoint.codec_weights.tensors.items()
    assert shapes(trainable, PREFIX) == {name: tensor.shape for name, tensor in stored if name.startswith(PREFIX)}


def test_of_the_published_size_it_has_114_million_parameters():
    config = CodecConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=10_000,
        codebook_dim=512,
        codebook_size=2048,
        num_quantizers=16,
        latent_dim=1024,
        decoder_dim=1536,
        sliding_window=72,
        upsample_rates=(8, 5, 4, 3),
        upsampling_ratios=(2, 2),
    )
    with torch.device("meta"):
        decoder = CodecDecoder(config)
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 114_323_137


def test_unused_codebook_entries_are_divided_by_the_floor(checkpoint, trainable):
    book = trainable.quantizer.rvq_first.codebooks()[0]
    row = book.embedding_sum[3] / book.cluster_usage[3]
    with torch.no_grad():
        book.cluster_usage[5] = 0
        torch.testing.assert_close(book.rows()[5], book.embedding_sum[5] * 1e5)
    torch.testing.assert_close(book.rows()[3], row)
