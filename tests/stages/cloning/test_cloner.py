"""The cloning process: asked once for each recording, replaced when it dies, and never in anybody's way."""

import asyncio
import os
import resource
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from duotone.stages.cloning import cloner as module
from duotone.stages.cloning.cloner import Cloner
from duotone.stages.cloning.config import CloningOptions
from duotone.stages.errors import ConfigurationError, NotReady, QueueFull, RequestError, StageFailed

from ...golden_outputs import BASE
from .recordings import stored, tone


@pytest.fixture
async def cloner():
    """`await cloner(…)` with options."""
    made = []

    async def start(**options) -> Cloner:
        made.append(Cloner(BASE, CloningOptions(**options)))
        await made[-1].start()
        return made[-1]

    yield start
    for running in made:
        await running.stop()


def pid(cloner: Cloner) -> int:
    return cloner._process.pid


async def test_a_recording_is_encoded_as_the_encoders_do_and_only_once(cloner, encoders, wav):
    running = await cloner()
    assert await running.listen(wav, "ref_audio") == encoders.listen(wav, 30)
    running._process.kill()
    assert await running.listen(wav, "ref_audio") == encoders.listen(wav, 30)


def test_a_voice_whose_x_vector_is_no_number_is_refused(encoders, wav, monkeypatch):
    monkeypatch.setattr(encoders, "_speaker", lambda samples: torch.full((64,), torch.nan))
    with pytest.raises(RequestError, match="x-vector holds what is no number"):
        encoders.listen(wav, 30)


async def test_no_more_is_remembered_than_set(cloner):
    running = await cloner(remembered=2)
    for hz in (200, 300, 400, 500):
        await running.listen(stored(tone(1, hz=hz)), "ref_audio")
    assert len(running._answers) == 2


async def test_a_refusal_names_the_field(cloner, wav):
    running = await cloner(max_audio_bytes=len(wav))
    with pytest.raises(RequestError, match="cannot be used: it is no WAV") as refused:
        await running.listen(b"nonsense", "audio_sample")
    assert refused.value.param == "audio_sample"
    with pytest.raises(RequestError, match=f"larger than {len(wav)} bytes") as refused:
        await running.listen(wav + b"x", "ref_audio")
    assert refused.value.param == "ref_audio"
    await running.listen(wav, "ref_audio")


async def test_those_who_ask_for_the_same_share_the_answer_and_too_many_others_are_refused(cloner, wav):
    running = await cloner(max_waiting=1)
    os.kill(pid(running), signal.SIGSTOP)
    asked = [asyncio.create_task(running.listen(wav, "ref_audio")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await running.listen(stored(tone(1)), "ref_audio")
    os.kill(pid(running), signal.SIGCONT)
    one, *others = await asyncio.gather(*asked)
    assert others == [one, one]


async def test_who_asks_may_go_and_the_next_gets_an_answer_of_its_own(cloner, encoders, wav):
    running = await cloner()
    first = pid(running)
    leaving = asyncio.create_task(running.listen(wav, "ref_audio"))
    await asyncio.sleep(0.01)
    leaving.cancel()
    other = stored(tone(1))
    assert await running.listen(other, "ref_audio") == encoders.listen(other, 30)
    assert pid(running) == first
    assert len(running._answers) == 2


async def test_a_process_that_dies_fails_its_recording_and_is_replaced(cloner, wav):
    running = await cloner()
    first = pid(running)
    os.kill(first, signal.SIGSTOP)
    asked = asyncio.create_task(running.listen(wav, "ref_audio"))
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(StageFailed, match="the process died"):
        await asked
    assert len((await running.listen(wav, "ref_audio")).frames()) == 13
    assert pid(running) != first


async def test_a_process_that_does_not_answer_is_given_up(cloner, wav):
    running = await cloner(timeout_s=0.2)
    os.kill(pid(running), signal.SIGSTOP)
    with pytest.raises(StageFailed, match=r"no answer came for 0\.2 s"):
        await running.listen(wav, "ref_audio")


async def test_the_event_loop_goes_on_while_a_recording_is_encoded(cloner):
    running = await cloner()
    asked = asyncio.create_task(
        running.listen(stored(np.random.default_rng(0).normal(size=720_000) * 0.1), "ref_audio")
    )
    loop, longest_s, before_s = asyncio.get_running_loop(), 0.0, None
    while not asked.done():
        now_s = loop.time()
        longest_s, before_s = max(longest_s, now_s - (before_s or now_s)), now_s
        await asyncio.sleep(0.001)
    assert len((await asked).frames()) == 375
    assert longest_s < 0.1


async def test_a_stop_ends_the_process_and_answers_who_waits(cloner, wav):
    running = await cloner()
    os.kill(pid(running), signal.SIGSTOP)
    asked = asyncio.create_task(running.listen(wav, "ref_audio"))
    await asyncio.sleep(0.05)
    await running.stop()
    with pytest.raises(NotReady):
        await asked
    assert running._process.returncode == -signal.SIGKILL


async def test_a_checkpoint_without_encoders_is_told_at_the_start(tmp_path):
    broken = shutil.copytree(BASE, tmp_path / "checkpoint")
    weights = load_file(broken / "model.safetensors")
    del weights["speaker_encoder.fc.bias"]
    save_file(weights, broken / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors: tensor speaker_encoder\.fc\.bias is missing"):
        await Cloner(broken, CloningOptions()).start()


async def test_a_process_that_cannot_run_is_told(monkeypatch):
    monkeypatch.setattr(module, "WORKER_MODULE", "duotone.no_such_module")
    with pytest.raises(StageFailed, match="the process died"):
        await Cloner(BASE, CloningOptions()).start()


async def test_a_process_that_cannot_be_spawned_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(StageFailed, match=r"cannot be started: .*no-python"):
        await Cloner(BASE, CloningOptions()).start()


@pytest.mark.parametrize("max_audio_s", [1.0, 30.0])
async def test_the_process_cannot_take_more_memory_than_its_recordings_need(cloner, max_audio_s):
    limit_bytes, _ = resource.prlimit(pid(await cloner(max_audio_s=max_audio_s)), resource.RLIMIT_DATA)
    assert limit_bytes == (4 << 30) + max_audio_s * (64 << 20)
