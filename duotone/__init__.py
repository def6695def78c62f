"""Duotone: an OpenAI-compatible text-to-speech server with a two-stage streaming pipeline."""

from importlib.metadata import version

__version__ = version("duotone")
