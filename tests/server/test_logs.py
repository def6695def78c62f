"""Log lines: bounded, and nothing in them that a client could use to write lines or colours of its own."""

import asyncio
import logging

import pytest

from duotone.server.logs import LineFormatter, reveals_something


def line(message: str, *args: object) -> str:
    return LineFormatter("%(levelname)s %(message)s").format(
        logging.LogRecord("duotone", logging.INFO, "", 0, message, args, None)
    )


def test_what_a_client_sends_stays_on_its_line_and_colours_nothing():
    assert line("voice '%s'", "a\r\nERROR b\x1b[31m\u202e") == "INFO voice 'a\\r\\nERROR b\\x1b[31m\\u202e'"


def test_what_can_be_printed_is_left_as_it_is():
    assert line("input '%s'", "Grüße, 世界 🙂") == "INFO input 'Grüße, 世界 🙂'"


def test_a_long_message_is_cut_and_says_how_long_it_was():
    text = line("%s", "x" * 5000)
    assert len(text) < 1100
    assert text.endswith("x… (5000 characters)")


def test_a_traceback_keeps_its_lines():
    try:
        raise ValueError("a bug")
    except ValueError as error:
        record = logging.LogRecord("duotone", logging.ERROR, "", 0, "broken", (), (type(error), error, None))
    assert LineFormatter("%(message)s").format(record) == "broken\nValueError: a bug"


@pytest.mark.parametrize(
    ("logger", "message", "error", "shown"),
    [
        ("uvicorn.error", "ASGI callable returned without completing response.", None, False),
        ("uvicorn.error", "Exception in ASGI application\n", asyncio.CancelledError(), False),
        ("uvicorn.error", "Exception in ASGI application\n", ValueError("a bug"), True),
        ("duotone.server.app", "Exception in a task", asyncio.CancelledError(), True),
        ("uvicorn.error", "Invalid HTTP request received.", None, True),
    ],
)
def test_only_what_our_own_lines_have_said_is_left_out(logger, message, error, shown):
    exc_info = (type(error), error, None) if error else None
    assert reveals_something(logging.LogRecord(logger, logging.ERROR, "", 0, message, (), exc_info)) is shown
