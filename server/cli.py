"""The `duotone` command. What its commands need is imported when they run, so that help is quick."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..stages.errors import ConfigurationError, DuotoneError
from .bench_cli import bench_app
from .config import Settings, load_settings, parse_assignment, parse_profiler_config
from .terminal import told

app = typer.Typer(
    help="Text to speech over OpenAI's HTTP interface, streamed while it is made.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app)

Model = Annotated[str | None, typer.Argument(help="A checkpoint directory or a hub name; else the bundled voice.")]
Profile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A YAML profile, or the name of one that is included.")
]
Assignments = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as pipeline.talker.slots=4. Repeatable."),
]


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"duotone {__version__}")
        raise typer.Exit


@app.command()
def serve(
    model: Model = None,
    config: Profile = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    monitor: Annotated[Path | None, typer.Option(help="Write every second of the monitor here at the end.")] = None,
    profiler_config: Annotated[
        str | None, typer.Option(help='JSON, for all stages or by stage: {"profiler": "torch", "directory": "traces"}.')
    ] = None,
    assignments: Assignments = [],  # noqa: B006  (typer's way to write an option that may be absent)
) -> None:
    """Serve a model until interrupted."""
    named: dict[str, object] = {
        "model": model,
        "http.host": host,
        "http.port": port,
        "served_model_name": served_model_name,
        "log_level": log_level,
        "monitor_file": monitor,
    }
    with told(DuotoneError):
        if profiler_config is not None:
            named |= parse_profiler_config(profiler_config)
        settings = _settings(config, named, assignments)
        from .logs import configure_logging
        from .service import serve as run

        configure_logging(settings.log_level)
        run(settings)


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; its name tells the format.")],
    model: Annotated[str | None, typer.Option(help="A checkpoint directory or a hub name.")] = None,
    config: Profile = None,
    voice: Annotated[str, typer.Option(help="A voice of the model.")] = "default",
    language: Annotated[str, typer.Option(help="A language of the model.")] = "auto",
    instructions: Annotated[
        str | None, typer.Option(help="How to say it, where the model follows instructions.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the same request sound the same.")] = None,
    ref_audio: Annotated[Path | None, typer.Option(help="A recording to speak like, where the model clones.")] = None,
    ref_text: Annotated[
        str | None, typer.Option(help="What the recording says: makes the speech more like it.")
    ] = None,
    assignments: Assignments = [],  # noqa: B006
) -> None:
    """Say a text into an audio file, without a server."""
    with told(DuotoneError):
        settings = _settings(config, {"model": model, "log_level": "warning"}, assignments)
        import asyncio

        from .logs import configure_logging
        from .service import request_to_say
        from .service import say as run

        configure_logging(settings.log_level)
        if text == "-":
            text = _standard_input()
        asked = {"input": text, "voice": voice, "language": language, "instructions": instructions}
        request = request_to_say(settings, asked | {"seed": seed, "ref_text": ref_text}, ref_audio)
        spoken_s = asyncio.run(run(settings, request, out))
    typer.echo(f"{out}: {spoken_s:.2f} s of speech")


def _standard_input() -> str:
    """Raises ConfigurationError for what is no UTF-8, or not there."""
    if sys.stdin is None:
        raise ConfigurationError("standard input: it is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"standard input: not UTF-8 at byte {error.start}") from None


def _settings(profile: str | None, named: Mapping[str, object], assignments: list[str]) -> Settings:
    """`named` flags win over --set, as the more particular; those not given are None."""
    flags = dict(parse_assignment(text) for text in assignments)
    return load_settings(profile, flags | {key: value for key, value in named.items() if value is not None})
