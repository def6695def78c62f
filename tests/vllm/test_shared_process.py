"""Both stages in one process, as on one GPU: each gives what it gives alone, while the other computes too."""

import asyncio

import numpy as np
import torch
import zmq

from duotone.stages import workers
from duotone.stages.messages import Frames, Samples
from duotone.stages.pipeline import Code2WavOptions, Crew, TalkerOptions, VllmOptions, WorkerSpec
from duotone.stages.types import SAMPLE_BYTES, SAMPLES_PER_FRAME
from duotone.stages.workers import Replica, start_crew, stop_replicas

from ..golden_outputs import CUSTOM_VOICE, GOLDEN
from ..stages.code2wav.hearing import CASES as SOUNDS
from ..stages.code2wav.hearing import assert_heard, decode
from .talking import Talk, assert_golden, golden_cases, speak

CASES = golden_cases(GOLDEN / "custom_voice")
ROUNDS = 3
START_S = 300


def crew() -> Crew:
    on_gpu = torch.cuda.is_available()
    devices = ("cuda:0" if on_gpu else "cpu",)
    vllm = VllmOptions(block_size=32, enforce_eager=not on_gpu)
    talker = TalkerOptions(engine="vllm", devices=devices, slots=16, max_positions=256, vllm=vllm)
    code2wav = Code2WavOptions(devices=devices, slots=len(SOUNDS), max_batch_frames=24)
    return Crew(
        workers=(
            WorkerSpec(stage="talker", replica=0, checkpoint=CUSTOM_VOICE, talker=talker),
            WorkerSpec(stage="code2wav", replica=0, checkpoint=CUSTOM_VOICE, code2wav=code2wav),
        )
    )


async def talk(talker: Replica) -> Talk:
    """All golden requests at once."""
    talker.send(*(speak(key, case) for key, case in enumerate(CASES)))
    made = Talk()
    while len(made.reasons) < len(CASES):
        event = await talker.channel.receive()
        assert isinstance(event, Frames), event
        for key, codes in zip(event.keys, np.frombuffer(event.codes, "<i2").reshape(-1, 16), strict=True):
            made.frames.setdefault(key, []).append(codes)
        made.reasons |= {ended.key: ended.reason for ended in event.ended}
    return made


async def hear(code2wav: Replica) -> list[np.ndarray]:
    """Every golden sound, as a stream of its own."""
    heard: dict[int, bytes] = {}
    ended: list[int] = []
    code2wav.send(*(decode(key, case.codes, last=True) for key, case in enumerate(SOUNDS.values())))
    while len(ended) < len(SOUNDS):
        event = await code2wav.channel.receive()
        assert isinstance(event, Samples), event
        ends = SAMPLE_BYTES * SAMPLES_PER_FRAME * np.cumsum(event.frames, dtype=int)
        for key, end, frames in zip(event.keys, ends, event.frames, strict=True):
            heard[key] = heard.get(key, b"") + event.samples[end - SAMPLE_BYTES * SAMPLES_PER_FRAME * frames : end]
        ended += event.ended
    return [np.frombuffer(heard[key], "<i2") for key in range(len(SOUNDS))]


async def both() -> None:
    context = zmq.Context()
    replicas = await start_crew(context, crew(), START_S)
    talker, code2wav = replicas
    try:
        for _ in range(ROUNDS):
            made, heard = await asyncio.gather(talk(talker), hear(code2wav))
            assert_golden(made, CASES)
            for samples, case in zip(heard, SOUNDS.values(), strict=True):
                assert_heard(samples, case)
    finally:
        await stop_replicas(replicas, 10)
        context.destroy(linger=0)
    assert talker.process.returncode == 0


def test_golden_codes_and_golden_sounds_come_out_of_one_process_at_the_same_time(monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(workers, "WORKER_MODULE", "tests.vllm.interpreted_worker")
    asyncio.run(asyncio.wait_for(both(), START_S))
