"""Every message survives the wire, and bytes that are none are refused."""

import msgspec
import pytest

from duotone.stages import messages as m
from duotone.stages.types import PromptPlan, Sampling

PLAN = PromptPlan(rows=bytes(68 * 3), trailing_text_ids=[4, 5], speaker=b"\0\0\0\0", speaker_row=2)


COMMANDS = [m.Speak(7, PLAN, Sampling(seed=2**63 - 1)), m.Decode(7, b"\1" * 32, True, 12.5), m.Abort([1]), m.Shutdown()]


@pytest.mark.parametrize("commands", [COMMANDS, COMMANDS[:1], []])
def test_commands_arrive_together_and_as_they_were_sent(commands):
    assert m.decode_commands(m.encode_commands(commands)) == commands


@pytest.mark.parametrize(
    "event",
    [
        m.Ready(8, 4711),
        m.Fatal("no memory"),
        m.Frames([1, 2], bytes(64), [m.Ended(2, "stop")], 2, 0.01),
        m.Samples([1], [1], bytes(3840), [1], 1, 0.002),
        m.Failed([3], "out of range"),
    ],
)
def test_an_event_arrives_as_it_was_sent(event):
    assert m.decode_event(m.encode_event(event)) == event


@pytest.mark.parametrize("part", [b"", b"\x00", b"junk", m.encode_event(m.Ready(1, 1))])
def test_bytes_that_are_no_commands_are_refused(part):
    with pytest.raises(msgspec.DecodeError):
        m.decode_commands(part)


def test_plan_rows_read_as_integers():
    assert PLAN.positions == 3
    assert PLAN.row_ids().shape == (3, 17)
