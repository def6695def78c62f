"""A listener without a model."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from duotone.stages.cloning.messages import Recording
from duotone.stages.errors import RequestError


@dataclass
class FakeListener:
    """Hears one number in a recording, its length, which becomes the x-vector; nothing in an empty one."""

    life: list[str] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    failure: Exception | None = None
    gate: asyncio.Event | None = None

    async def start(self) -> None:
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")

    async def listen(self, audio: bytes, field: str) -> Recording:
        self.heard.append(audio)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if not audio:
            raise RequestError("the recording cannot be used: it is silent", field)
        return Recording(np.array([len(audio)], "<f4").tobytes(), np.zeros((2, 16), "<i2").tobytes())
