"""The page at `/`: type a text, choose a voice, listen. Its files ask for nothing from elsewhere, and may not."""

import mimetypes
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

_PATHS = ("/", "/page.css", "/page.js", "/sound.js")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    # Kept, but asked about each time: after an update no page runs with another version's script.
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

# What browsers take for a script, whatever this machine's own table says.
mimetypes.add_type("text/javascript", ".js")


class _Files(StaticFiles):
    """Answers 304 to a client that has a file already."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[Route]:
    """They need no key: the page asks for one where the speech route wants it."""
    files = _Files(directory=Path(__file__).parent / "static", html=True)
    return [Route(path, files, include_in_schema=False) for path in _PATHS]
