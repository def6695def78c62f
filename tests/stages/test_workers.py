"""Real worker processes: one for each stage, or one for both."""

import asyncio
import os
import sys
import tempfile

import numpy as np
import pytest
import zmq

from duotone.stages import workers
from duotone.stages.errors import ConfigurationError, StageFailed
from duotone.stages.messages import Decode, Frames, Samples, Speak
from duotone.stages.pipeline import Code2WavOptions, Crew, TalkerOptions, WorkerSpec
from duotone.stages.types import CODEBOOKS, NO_CODE, SAMPLES_PER_FRAME, PromptPlan, Sampling
from duotone.stages.workers import Replica, start_crew, stop_replicas

from ..serving import CHECKPOINT

START_S = 60


def talker(**options) -> WorkerSpec:
    return WorkerSpec(stage="talker", replica=0, checkpoint=CHECKPOINT, talker=TalkerOptions(**options))


def code2wav(**options) -> WorkerSpec:
    return WorkerSpec(stage="code2wav", replica=0, checkpoint=CHECKPOINT, code2wav=Code2WavOptions(**options))


@pytest.fixture
async def crew():
    """`await crew(spec, …)`: the replicas of a process."""
    context, started = zmq.Context(), []

    async def start(*specs: WorkerSpec, timeout_s: float = START_S) -> list[Replica]:
        replicas = await start_crew(context, Crew(workers=specs), timeout_s)
        started.extend(replicas)
        return replicas

    yield start
    await stop_replicas(started, 5)
    context.destroy(linger=0)


def plan() -> PromptPlan:
    row = np.full(1 + CODEBOOKS, NO_CODE, "<i4")
    row[:2] = 0, 1
    return PromptPlan(row.tobytes())


async def ended(replica: Replica) -> bool:
    await asyncio.wait_for(replica.process.wait(), 10)
    return not replica.alive


async def test_both_stages_work_in_one_process_at_the_same_time(crew):
    speaker, decoder = await crew(talker(slots=3), code2wav(slots=5))
    assert (speaker.slots, decoder.slots) == (3, 5)
    assert speaker.process is decoder.process
    speaker.send(Speak(7, plan(), Sampling(0, min_new_frames=30, max_new_frames=30)))
    codes = np.zeros((4, CODEBOOKS), "<i2").tobytes()
    for _ in range(5):
        decoder.send(Decode(8, codes, False, 0.0))
    samples = frames = 0
    while samples < 20 * SAMPLES_PER_FRAME * 2:
        event = await decoder.channel.receive()
        assert isinstance(event, Samples)
        samples += len(event.samples)
    while frames < 30:
        event = await speaker.channel.receive()
        assert isinstance(event, Frames)
        frames += len(event.keys)
    assert (samples, frames) == (20 * SAMPLES_PER_FRAME * 2, 30)
    await stop_replicas([speaker, decoder], 10)
    assert speaker.process.returncode == 0


async def test_a_process_waits_for_the_last_of_its_workers_to_be_told_to_leave(crew):
    speaker, decoder = await crew(talker(), code2wav())
    leaving = asyncio.create_task(decoder.stop(20))
    speaker.send(Speak(7, plan(), Sampling(0, min_new_frames=3, max_new_frames=3)))
    assert isinstance(await speaker.channel.receive(), Frames)
    assert not leaving.done()
    await speaker.stop(10)
    await leaving
    assert speaker.process.returncode == 0


async def test_what_breaks_one_worker_ends_both_and_says_why(crew):
    speaker, decoder = await crew(talker(), code2wav(slots=1))
    # More streams than there are slots: a mistake of the orchestrator, which no engine expects.
    decoder.send(*(Decode(key, bytes(2 * CODEBOOKS), False, 0.0) for key in (1, 2)))
    assert await ended(speaker)
    assert await ended(decoder)
    assert decoder.heard(await decoder.channel.receive()) is None
    assert "IndexError" in decoder.death().reason
    assert "exit status 1" in speaker.death().reason


@pytest.mark.parametrize("refused", ["talker", "code2wav"])
async def test_a_worker_that_refuses_to_start_is_quoted_and_leaves_no_process(crew, monkeypatch, tmp_path, refused):
    processes, spawn = [], asyncio.create_subprocess_exec

    async def spy(*arguments, **options):
        processes.append(await spawn(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    specs = {"talker": talker(), "code2wav": code2wav()}
    specs[refused] = specs[refused].model_copy(update={"checkpoint": tmp_path})
    with pytest.raises(ConfigurationError, match=rf"^{refused}-0: {tmp_path}"):
        await crew(*specs.values())
    (process,) = processes
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_a_process_that_takes_too_long_to_start_is_given_up(crew):
    with pytest.raises(StageFailed, match=r"^talker-0\+code2wav-0: not ready within 0 s"):
        await crew(talker(), code2wav(), timeout_s=0.01)


async def test_a_process_that_dies_without_a_word_is_no_worker(crew, monkeypatch):
    monkeypatch.setattr(workers, "WORKER_MODULE", "duotone.no_such_module")
    with pytest.raises(StageFailed, match=r"^talker-0\+code2wav-0: died while starting \(exit status 1\)"):
        await crew(talker(), code2wav())


async def test_a_process_that_cannot_be_spawned_is_a_failure_that_leaves_nothing(crew, monkeypatch, tmp_path):
    async def fails(reason: str) -> None:
        with pytest.raises(StageFailed, match=rf"^talker-0\+code2wav-0: cannot be started: .*{reason}"):
            await crew(talker(), code2wav())

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    await fails("gone")
    too_long = tmp_path / ("x" * 120)
    too_long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(too_long))
    await fails("is longer than")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    await fails("no-python")
    await asyncio.sleep(0.2)  # zmq closes a socket a moment later
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await fails("no-python")
    await asyncio.sleep(0.2)
    assert list(tmp_path.iterdir()) == [too_long]
    assert list(too_long.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= files


async def test_a_worker_that_was_not_asked_to_leave_is_not_blamed_for_staying(crew, monkeypatch, caplog):
    monkeypatch.setattr(workers, "WORKER_MODULE", "duotone.no_such_module")
    with pytest.raises(StageFailed):
        await crew(talker())
    assert "does not leave" not in caplog.text


@pytest.mark.parametrize("told", [b"", b'{"workers": ['])
async def test_a_process_whose_parent_was_killed_before_it_had_told_all_removes_the_sockets(tmp_path, told):
    folder = tmp_path / "duotone-x"
    folder.mkdir()
    addresses = [f"ipc://{folder}/{name}" for name in ("talker-0", "code2wav-0")]
    for name in ("talker-0", "code2wav-0"):
        (folder / name).touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", workers.WORKER_MODULE, *addresses), stdin=asyncio.subprocess.PIPE
    )
    await process.communicate(told)
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []
