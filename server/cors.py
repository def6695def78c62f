"""CORS, refused in the envelope of every other error."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from .errors import envelope


class EnvelopedCorsMiddleware(CORSMiddleware):
    """Answers 403 to a preflight of an origin that is not allowed."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Methods and headers are all allowed, so only the origin can be at fault."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        error = HTTPException(403, f"pages of {request_headers['origin']} may not call this server")
        return JSONResponse(envelope(error).model_dump(), error.status_code)
