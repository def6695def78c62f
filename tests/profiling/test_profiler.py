"""Worker profilers: what is recorded when, and a start that fails."""

import json
import resource
import shutil

import pytest

torch = pytest.importorskip("torch")

from duotone.profiling.options import ProfilerOptions  # noqa: E402
from duotone.profiling.profiler import (  # noqa: E402
    CudaProfiler,
    ProfilerError,
    TorchProfiler,
    check_whole,
    make_profiler,
)


def step(profiler, number: int) -> None:
    with torch.profiler.record_function(f"step {number}"):
        torch.ones(2).sum()
    profiler.step()


def steps(path) -> list[str]:
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    return sorted(name for name in names if name.startswith("step "))


def test_a_window_holds_the_steps_between_start_and_stop(tmp_path):
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path / "new"), "talker-0")
    step(profiler, 0)
    profiler.start()
    step(profiler, 1)
    step(profiler, 2)
    (path,) = profiler.stop()
    step(profiler, 3)
    assert path.name.startswith("talker-0.")
    assert steps(path) == ["step 1", "step 2"]
    assert profiler.stop() == []
    profiler.start()
    step(profiler, 4)
    (second,) = profiler.stop()
    assert steps(second) == ["step 4"]


def test_delay_and_maximum_bound_the_window(tmp_path):
    options = ProfilerOptions(profiler="torch", directory=tmp_path, delay_iterations=2, max_iterations=2)
    profiler = TorchProfiler(options, "talker-0")
    profiler.start()
    for number in range(1, 8):
        step(profiler, number)
    (path,) = profiler.stop()
    assert steps(path) == ["step 3", "step 4"]


def test_a_forgotten_profile_ends_by_itself_unless_told_otherwise(tmp_path):
    def recorded(**options) -> int:
        profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path, **options), "talker-0")
        profiler.start()
        for number in range(103):
            step(profiler, number)
        (path,) = profiler.stop()
        return len(steps(path))

    assert recorded() == 100
    assert recorded(max_iterations=101) == 101
    assert recorded(max_iterations=0) == 103
    assert ProfilerOptions(profiler="cuda").most_steps == 0, "a window costs nothing to hold open"


def test_nothing_is_recorded_before_a_start(tmp_path):
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path, delay_iterations=2), "talker-0")
    for number in range(1, 5):
        step(profiler, number)
    assert profiler.stop() == []


@pytest.fixture
def file_bytes():
    """Sets how large a file may get, as a disk that fills up does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# torch gives a trace that it has cut another name, unless only the last bytes are missing.
@pytest.mark.parametrize(("fails", "said"), [("gone", "not there: No such"), ("early", "not there"), ("late", "cut")])
def test_a_trace_that_is_missing_or_cut_is_said_and_the_next_one_is_written(tmp_path, file_bytes, fails, said):
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path / "traces"), "talker-0")

    def window() -> None:
        profiler.start()
        for number in range(5):
            step(profiler, number)

    window()
    (whole,) = profiler.stop()
    window()
    if fails == "gone":
        shutil.rmtree(tmp_path / "traces")
    else:
        file_bytes(1000 if fails == "early" else whole.stat().st_size - 80)
    with pytest.raises(ProfilerError, match=rf"traces/talker-0\..*json: the trace is {said}"):
        profiler.stop()
    file_bytes(resource.RLIM_INFINITY)
    assert profiler.stop() == []
    window()
    (path,) = profiler.stop()
    assert len(steps(path)) == 5


def test_a_cut_is_seen_wherever_it_is(tmp_path):
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path), "talker-0")
    profiler.start()
    (path,) = profiler.stop()
    trace = path.read_bytes()
    for size in range(len(trace)):
        path.write_bytes(trace[:size])
        with pytest.raises(ProfilerError, match="cut"):
            check_whole(path)
    path.write_bytes(trace)
    check_whole(path)


def test_a_stop_before_the_delay_is_over_writes_nothing_and_nothing_starts_later(tmp_path):
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path, delay_iterations=3), "talker-0")
    profiler.start()
    step(profiler, 1)
    assert profiler.stop() == []
    for number in range(2, 6):
        step(profiler, number)
    assert profiler.stop() == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    profiler = TorchProfiler(ProfilerOptions(profiler="torch", directory=tmp_path / "file" / "x"), "talker-0")
    with pytest.raises(ProfilerError, match="file"):
        profiler.start()


class Window:
    """A CUDA window that only counts, and never runs."""

    is_running = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")

    def stop(self) -> None:
        self.calls.append("stop")


def test_a_cuda_window_that_does_not_open_is_an_error_and_is_closed():
    window = Window()
    with pytest.raises(ProfilerError, match="did not start"):
        CudaProfiler(ProfilerOptions(profiler="cuda"), window).start()
    assert window.calls == ["start", "stop"]


def test_a_delayed_cuda_window_may_open_later():
    window = Window()
    profiler = CudaProfiler(ProfilerOptions(profiler="cuda", delay_iterations=5), window)
    profiler.start()
    profiler.step()
    assert profiler.stop() == []
    assert window.calls == ["start", "step", "stop"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_cuda_profiler_is_refused():
    with pytest.raises(ProfilerError, match="CUDA device"):
        make_profiler(ProfilerOptions(profiler="cuda"), "talker-0")
