"""How a stage is profiled: one frozen model, part of the stage's settings."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ProfilerOptions(BaseModel):
    """A stage's `profiler_config`. Without one, its profiling routes do not exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profiler: Literal["cuda", "torch"] = Field(description="cuda: a window for Nsight; torch: a Chrome trace")
    directory: Path = Field(Path("traces"), description="where the torch profiler writes; made when it is missing")
    delay_iterations: int = Field(0, ge=0, description="steps after the start until recording begins")
    max_iterations: int = Field(
        100, ge=0, description="recording ends by itself after so many steps, 100 unless told otherwise; 0: at the stop"
    )
    with_stack: bool = Field(False, description="record Python stacks (torch)")
    record_shapes: bool = Field(False, description="record the shapes of operands (torch)")
    with_memory: bool = Field(False, description="record allocations (torch)")
