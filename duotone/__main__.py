"""`python -m duotone` is the `duotone` command."""

from duotone.server.cli import app

app()
