"""The load itself: a real server with real workers and sockets gives every listener an answer of the exact length."""

from .measure import line, measure


async def test_streams_through_real_processes_are_answered_to_the_last_sample():
    level, cpu_s = await measure(streams=8, requests=24)
    assert (level.summary.completed, level.summary.failures, level.summary.inexact) == (24, {}, 0)
    # A process that answered 24 times has worked, and every chunk that it sent was heard.
    assert cpu_s > 0
    assert line(level, cpu_s).startswith("| 8 |")
