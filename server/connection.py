"""The connection while a request is worked on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from .errors import ClientGone

_T = TypeVar("_T")


async def until_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """Do `work` while the client is there. When it leaves, cancel the work, wait for its end, and raise ClientGone."""
    task, gone = asyncio.current_task(), False
    assert task is not None

    def left(watching: asyncio.Task[None]) -> None:
        nonlocal gone
        gone = not watching.cancelled()
        if gone:
            task.cancel()

    watching = asyncio.create_task(_gone(receive))
    watching.add_done_callback(left)
    try:
        return await work
    except asyncio.CancelledError:
        # Like asyncio's time-outs: whoever else cancelled the task meanwhile is obeyed.
        if gone and not task.uncancel():
            raise ClientGone("the client went away") from None
        raise
    finally:
        watching.remove_done_callback(left)
        watching.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
