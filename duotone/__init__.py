"""Duotone: an OpenAI-compatible text-to-speech server with a two-stage streaming pipeline."""

__version__ = "0.1.0"
