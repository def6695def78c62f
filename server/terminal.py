"""How a command ends that cannot go on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


@contextmanager
def told(*errors: type[Exception]) -> Iterator[None]:
    """Ends the command with a line on standard error for one of these, without a word for Ctrl-C."""
    try:
        yield
    except errors as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(EXIT_ERROR) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(EXIT_INTERRUPTED) from None
