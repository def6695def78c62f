"""The connection while a request is worked on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from .errors import ClientGone

_T = TypeVar("_T")


async def until_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """Do `work` while the client is there. When it leaves, cancel the work, wait for its end, and raise ClientGone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("the client went away")
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
