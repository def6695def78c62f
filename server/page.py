"""The page at `/`: type a text, choose a voice, listen. Its files ask for nothing from elsewhere, and may not."""

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/sound.js": ("sound.js", "text/javascript"),
}
"""Path → file and media type."""

_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_router() -> APIRouter:
    """The page's files, read once. They need no key: the page asks for one where the speech route wants it."""
    router = APIRouter()
    for path, (name, media_type) in _FILES.items():
        endpoint = _file((_FOLDER / name).read_bytes(), media_type)
        router.add_api_route(path, endpoint, include_in_schema=False, response_class=Response)
    return router


def _file(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers with the content, or 304 to a client that has it already."""
    tag = f'"{blake2b(content, digest_size=8).hexdigest()}"'
    headers = {
        "Content-Security-Policy": _CONTENT_POLICY,
        # Kept, but asked about each time: after an update no page runs with another version's script.
        "Cache-Control": "no-cache",
        "ETag": tag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def answer(request: Request) -> Response:
        # A proxy that compresses makes the tag a weak one.
        known = [known.strip().removeprefix("W/") for known in request.headers.get("if-none-match", "").split(",")]
        if tag in known:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return answer
