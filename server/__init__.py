"""The OpenAI-compatible HTTP frontend, its settings and the command line."""
