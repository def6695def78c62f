"""Pipeline definitions: which stages there are, their options and defaults.

A pipeline is chosen once, from the checkpoint's `model_type`; nothing else in the code asks for a model's name.
Options are frozen pydantic models: the server's settings contain them, and a worker gets its own as JSON.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ..profiling.options import ProfilerOptions

Stage = Literal["talker", "code2wav"]
STAGES: tuple[Stage, ...] = ("talker", "code2wav")
Orchestration = Literal["event_driven", "polling"]


class Options(BaseModel):
    """Base of every settings model: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def one_or_more(values: object) -> object:
    """A value alone, as an environment variable holds it, is a list of one."""
    return (values,) if isinstance(values, str) else values


def _device(name: str) -> str:
    """`cuda` alone is the first GPU."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"{name}: expected cpu, or cuda:0 for the first GPU, cuda:1 for the next")
    return "cuda:0" if name == "cuda" else name


Devices = Annotated[tuple[Annotated[str, AfterValidator(_device)], ...], BeforeValidator(one_or_more)]


class VllmOptions(Options):
    """What vLLM is told beyond the Talker's own settings; the torch engine ignores it."""

    cache_positions: int | None = Field(
        None, ge=64, description="key/value positions of all requests together; by default 1,024 for each slot"
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=16, description="prompt positions and frames of one step; by default 512 beside a frame of each slot"
    )
    block_size: int | None = Field(None, ge=16, description="positions of a key/value block; by default vLLM's choice")
    load_format: Literal["safetensors", "dummy"] = Field("safetensors", description="dummy: random weights, to measure")
    enforce_eager: bool = Field(False, description="neither compile nor capture CUDA graphs: starts fast, runs slowly")
    batch_invariant: bool = Field(
        False, description="the same codes whatever else is in the batch, in bfloat16 too; slower"
    )
    tensor_parallel_size: int = Field(1, ge=1, description="only 1 works: capacity grows by replicas")


class StageOptions(Options):
    """What every stage can be told."""

    devices: Devices = Field(
        ("cpu",), min_length=1, description="cpu or cuda:N, a replica of the stage on each; one may stand there twice"
    )
    profiler_config: ProfilerOptions | None = Field(None, description="None: the stage cannot be profiled")

    @property
    def device(self) -> str:
        """`cpu` or `cuda`, as a worker's engine calls it: its own options name one device, and it sees no other GPU."""
        return self.devices[0].partition(":")[0]


class TalkerOptions(StageOptions):
    """How the Talker runs."""

    engine: Literal["torch", "vllm"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"
    slots: int = Field(8, ge=1, le=1024, description="requests generated at once")
    max_positions: int = Field(4096, ge=64, description="prompt positions plus frames that one request may hold")
    threads: int = Field(1, ge=1, description="CPU threads of the worker")
    vllm: VllmOptions = VllmOptions()


class Code2WavOptions(StageOptions):
    """How Code2Wav runs."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    slots: int = Field(16, ge=1, le=4096, description="streams held at once")
    max_chunk_frames: int = Field(8, ge=1, le=64, description="frames of one stream decoded in one step")
    max_batch_frames: int = Field(8, ge=1, description="frames of all streams decoded in one step: bounds its time")
    step_interval_ms: float = Field(
        0,
        ge=0,
        le=1000,
        description="steps begin so far apart, less in proportion while under half the slots are taken: fewer steps, "
        "of more frames, leave a shared GPU to the Talker",
    )
    threads: int = Field(1, ge=1, description="CPU threads of the worker")


class PipelineOptions(Options):
    """How both stages and what joins them run."""

    talker: TalkerOptions = TalkerOptions()
    code2wav: Code2WavOptions = Code2WavOptions()
    orchestration: Orchestration | None = Field(None, description="None: the pipeline's own default")
    max_waiting: int = Field(256, ge=0, description="requests that may wait for a slot; one more is refused")
    max_buffered_s: float = Field(10.0, gt=0, description="audio decoded ahead of a listener who reads slowly")
    start_timeout_s: float = Field(600.0, gt=0, description="a worker must be loaded and warm within this time")
    stall_timeout_s: float = Field(
        60.0, gt=0, description="a request in the stages without a new sample fails after it"
    )
    hang_timeout_s: float = Field(
        30.0, ge=3, description="a worker that says nothing for so long is killed; the longest step must be shorter"
    )

    def stage(self, stage: Stage) -> "TalkerOptions | Code2WavOptions":
        """The options of one stage."""
        return self.talker if stage == "talker" else self.code2wav


class WorkerSpec(Options):
    """All that a worker is told at its start."""

    stage: Stage
    replica: int
    checkpoint: Path
    talker: TalkerOptions | None = None
    code2wav: Code2WavOptions | None = None

    @property
    def options(self) -> StageOptions:
        """The options of the worker's stage."""
        options = self.talker or self.code2wav
        assert options is not None
        return options

    @property
    def device(self) -> str:
        """The worker's one device, as the settings name it."""
        return self.options.devices[0]

    @property
    def name(self) -> str:
        """`talker-0`, as logs and metrics name it."""
        return f"{self.stage}-{self.replica}"


class Crew(Options):
    """The workers of one process, and so of one device: a line of JSON on its standard input."""

    workers: tuple[WorkerSpec, ...]

    @property
    def device(self) -> str:
        """The one device of all."""
        return self.workers[0].device

    @property
    def name(self) -> str:
        """`talker-0+code2wav-0`, as logs name the process."""
        return "+".join(worker.name for worker in self.workers)


@dataclass(frozen=True)
class Pipeline:
    """A registered pipeline's own defaults."""

    orchestration: Orchestration = "polling"
    """The loop that runs where the settings do not choose one; event driven once that has been validated."""


PIPELINES = {"qwen3_tts": Pipeline(orchestration="event_driven")}
