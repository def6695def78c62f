"""/v1/audio/voices: what requests may give as `voice`, and voices that are uploaded, as OpenAI's clients do."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, File, Form, Path, Request, UploadFile
from fastapi.params import Depends
from starlette.exceptions import HTTPException

from .cloning import Cloning
from .connection import until_gone
from .errors import ERROR_RESPONSES
from .protocol import NewVoice, Text, VoiceDeleted, VoiceList

Name = Annotated[
    Text,
    Form(
        min_length=1,
        max_length=64,
        pattern=r"^\w(?:[\w .'-]*\w)?$",
        description="what requests will give as `voice`, in any case: letters, digits, spaces and . ' - _",
    ),
]
Sample = Annotated[
    UploadFile, File(description="half a second or more of one voice: WAV, FLAC, MP3, AAC, MP4, Ogg, WebM, AIFF or CAF")
]
Said = Annotated[
    Text | None, Form(description="what is said in it; without it the voice is less like it, by its x-vector alone")
]


def voices_router(cloning: Cloning, locked: Sequence[Depends]) -> APIRouter:
    """Reading needs no key; `locked` says for /docs that the rest does."""
    router = APIRouter(tags=["catalog"])

    @router.get("/v1/audio/voices", summary="The names that requests may give as `voice`")
    async def voices() -> VoiceList:
        return VoiceList(voices=cloning.voice_cards())

    @router.post(
        "/v1/audio/voices", summary="Upload a voice to speak with", responses=ERROR_RESPONSES, dependencies=locked
    )
    async def upload(request: Request, name: Name, audio_sample: Sample, ref_text: Said = None) -> NewVoice:
        """For `base` checkpoints. What is kept is what prompts need of the recording, and not the recording."""
        uploading = cloning.upload(name, await audio_sample.read(), ref_text)
        voice = await until_gone(request.receive, uploading)
        return NewVoice(id=voice.name, name=voice.name, created_at=voice.created_s)

    @router.delete(
        "/v1/audio/voices/{name}", summary="Forget an uploaded voice", responses=ERROR_RESPONSES, dependencies=locked
    )
    async def delete(name: Annotated[str, Path(max_length=64)]) -> VoiceDeleted:
        """Speech that has begun goes on."""
        return VoiceDeleted(id=cloning.delete(name).name)

    @router.api_route("/v1/audio/voices", methods=["DELETE", "PATCH", "PUT", "OPTIONS"], include_in_schema=False)
    async def neither() -> None:
        # Of several routes with one path, the router would name the first one's method alone.
        raise HTTPException(405, headers={"Allow": "GET, POST"})

    return router
