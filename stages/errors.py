"""Every error that the pipeline raises on purpose, in one tree.

DuotoneError
├── CheckpointError    a checkpoint that cannot be served: names the file and the key
├── ConfigurationError settings that cannot work together or on this machine
├── RequestError       a request that the pipeline refuses: names the field
│   └── QueueFull      too many requests are waiting already
└── PipelineError      the pipeline cannot do what was asked of it now
    ├── NotReady       a stage is starting, draining or dead
    ├── StageFailed    a worker failed on this request or died with it
    │   └── ProfilerFailed  a worker's profiler did not start, or did not write its trace
    └── ProfilingConflict  profiling runs already, or does not run
"""


class DuotoneError(Exception):
    """The root of the tree; the message is meant for the reader of a log or of an error envelope."""


class CheckpointError(DuotoneError):
    """A checkpoint cannot be served."""


class ConfigurationError(DuotoneError):
    """The settings cannot work together, or not on this machine."""


class RequestError(DuotoneError):
    """The request itself is at fault. `param` names the field of the request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(RequestError):
    """The waiting queue has no room. `retry_after_s` is an estimate."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PipelineError(DuotoneError):
    """The pipeline cannot do this now; the request is not at fault."""


class NotReady(PipelineError):
    """A stage is starting, draining or dead."""


class ProfilingConflict(PipelineError):
    """A stage is to be profiled that is profiled already, or to stop what it has not started."""


class StageFailed(PipelineError):
    """A worker failed on this request, or died while it held it."""


class ProfilerFailed(StageFailed):
    """A worker's profiler did not start, or did not write its trace."""
