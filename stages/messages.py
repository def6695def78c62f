"""The whole wire protocol between the orchestrator and the workers.

One ZeroMQ part is one event, or a list of commands, as msgpack. `key` is the orchestrator's number for a request; it is
never used twice in the life of a server. Codes travel as int16 [frames, 16], samples as int16, both little-endian.
"""

from collections.abc import Callable, Sequence

import msgspec

from .types import PromptPlan, Sampling


class Speak(msgspec.Struct, tag=True):
    """To the Talker: start a request."""

    key: int
    plan: PromptPlan
    sampling: Sampling


class Decode(msgspec.Struct, tag=True):
    """To Code2Wav: the next frames of a stream, int16 [frames, 16]. The first one opens the stream, `last` closes it.

    `codes` may be empty when `last` is set. `deadline_s` is the `time.monotonic()` at which the listener runs dry.
    """

    key: int
    codes: bytes
    last: bool
    deadline_s: float


class Abort(msgspec.Struct, tag=True):
    """To either stage: forget these requests at once. Unknown keys are ignored: an end may have crossed on the way."""

    keys: list[int]


class Shutdown(msgspec.Struct, tag=True):
    """To any worker: leave the loop and exit with status 0."""


class StartProfile(msgspec.Struct, tag=True):
    """To any worker: begin to profile, as its settings say. Answered with Profiled."""


class StopProfile(msgspec.Struct, tag=True):
    """To any worker: end profiling and write what was recorded. Answered with Profiled."""


class Scrape(msgspec.Struct, tag=True):
    """To any worker: what metrics does the engine keep itself? Answered with Exposition."""


class Ping(msgspec.Struct, tag=True):
    """To any worker that has said nothing for a while: are you there? Answered with Pong between two steps."""


class Ready(msgspec.Struct, tag=True):
    """From a worker whose engine can take work. `slots`: how many requests it holds at once."""

    slots: int
    pid: int


class Fatal(msgspec.Struct, tag=True):
    """From a worker that is about to exit: it could not start, or its engine broke. All its requests are lost."""

    message: str


class Ended(msgspec.Struct):
    """A request that the Talker finished. `reason`: `stop` (the model ended it) or `length` (max_new_frames)."""

    key: int
    reason: str


class Frames(msgspec.Struct, tag=True):
    """From the Talker, once a step: a frame of each of `keys`, int16 [len(keys), 16], and what ended with the step."""

    keys: list[int]
    codes: bytes
    ended: list[Ended]
    batch: int
    step_s: float


class Samples(msgspec.Struct, tag=True):
    """From Code2Wav, once a step: samples of each of `keys`, int16, `frames[i]` · 1920 of them, one after the other.

    `ended` lists the streams that have been decoded to their last frame.
    """

    keys: list[int]
    frames: list[int]
    samples: bytes
    ended: list[int]
    batch: int
    step_s: float


class Failed(msgspec.Struct, tag=True):
    """From a worker: these requests failed in it and are forgotten there; others go on."""

    keys: list[int]
    message: str


class Profiled(msgspec.Struct, tag=True):
    """From a worker: its profiler has started or stopped, unless `error` says why not. `files` were written."""

    files: list[str]
    error: str | None = None


class Exposition(msgspec.Struct, tag=True):
    """From a worker: its engine's own metrics in Prometheus' text format, empty where it keeps none."""

    text: str


class Pong(msgspec.Struct, tag=True):
    """From a worker that was asked whether it is there."""


Control = StartProfile | StopProfile | Scrape | Ping
StageCommand = Speak | Decode | Abort
Command = StageCommand | Control | Shutdown
Event = Ready | Fatal | Frames | Samples | Failed | Profiled | Exposition | Pong

encode_event: Callable[[Event], bytes] = msgspec.msgpack.Encoder().encode
"""An event as the bytes of one ZeroMQ part. Not thread-safe: each process sends from one thread."""
encode_commands: Callable[[Sequence[Command]], bytes] = msgspec.msgpack.Encoder().encode
"""What the orchestrator has to say to a worker at once, as one part. Event loop only."""
decode_commands = msgspec.msgpack.Decoder(list[Command]).decode
"""What a worker reads. Raises msgspec.DecodeError on bytes that are no commands."""
decode_event: Callable[[bytes], Event] = msgspec.msgpack.Decoder(Event).decode
"""What the orchestrator reads. Raises msgspec.DecodeError on bytes that are no event."""
