"""HEAD: what GET answers, without its body. FastAPI's routes know it not."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadMiddleware:
    """Has HEAD answered as GET; the HTTP server, which knows what was asked, keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if head else scope, receive, send)
