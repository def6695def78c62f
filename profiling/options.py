"""How a stage is profiled: one frozen model, part of the stage's settings."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TRACED_STEPS = 100


class ProfilerOptions(BaseModel):
    """A stage's `profiler_config`. Without one, its profiling routes do not exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profiler: Literal["cuda", "torch"] = Field(description="cuda: a window for Nsight; torch: a Chrome trace")
    directory: Path = Field(Path("traces"), description="where the torch profiler writes; made when it is missing")
    delay_iterations: int = Field(0, ge=0, description="steps after the start until recording begins")
    max_iterations: int | None = Field(
        None, ge=0, description="recording ends by itself after so many steps; 0: at the stop; else 100 with torch"
    )
    with_stack: bool = Field(False, description="record Python stacks (torch)")
    record_shapes: bool = Field(False, description="record the shapes of operands (torch)")
    with_memory: bool = Field(False, description="record allocations (torch)")

    @property
    def most_steps(self) -> int:
        """Steps of a recording, 0 for any number: a torch trace that is forgotten must not fill the memory."""
        if self.max_iterations is not None:
            return self.max_iterations
        return TRACED_STEPS if self.profiler == "torch" else 0
