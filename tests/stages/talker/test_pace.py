"""How late the Talker plans a step."""

import pytest

from duotone.stages.talker.pace import SPARE_S, STEPS, Pace

STEP_S, HOST_S = 0.006, 0.002


def run(pace, steps, now_s=100.0, host_s=HOST_S, step_s=STEP_S):
    """Steps that follow each other on the device; returns when the last one ends."""
    for _ in range(steps):
        planned_s = now_s + pace.rest_s(now_s)
        now_s += step_s
        pace.ended(now_s, planned_s, planned_s + host_s)
    return now_s


def test_nothing_waits_before_it_is_known_how_long_a_step_takes():
    pace = Pace()
    assert pace.rest_s(100) == 0
    assert pace.ended(100.0, 99.5, 99.75) == 0.5, "since its plan"
    assert pace.rest_s(100) == 0


def test_a_step_is_launched_the_spare_time_before_the_one_on_the_device_ends():
    pace = Pace()
    ended_s = run(pace, 40)
    rest_s = pace.rest_s(ended_s)
    assert rest_s + HOST_S + SPARE_S == pytest.approx(STEP_S)
    assert pace.rest_s(ended_s + rest_s / 2) == pytest.approx(rest_s / 2)
    assert pace.rest_s(ended_s + STEP_S) == 0


def test_a_step_takes_from_one_end_to_the_next_however_late_it_is_planned():
    pace = Pace()
    ended_s = run(pace, 3)
    assert pace.ended(ended_s + STEP_S, ended_s + 0.003, ended_s + 0.004) == pytest.approx(STEP_S)


@pytest.mark.parametrize(("host_s", "step_s"), [(0.004, STEP_S), (HOST_S, 0.004), (0.0055, STEP_S)])
def test_one_slow_host_or_short_step_makes_the_next_plans_early(host_s, step_s):
    pace = Pace()
    ended_s = run(pace, 1, now_s=run(pace, 40), host_s=host_s, step_s=step_s)
    early_s = max(0.0, step_s - host_s - SPARE_S)
    assert pace.rest_s(ended_s) == pytest.approx(early_s)
    ended_s = run(pace, STEPS - 1, now_s=ended_s)
    assert pace.rest_s(ended_s) == pytest.approx(early_s)
    ended_s = run(pace, 1, now_s=ended_s)
    assert pace.rest_s(ended_s) == pytest.approx(STEP_S - HOST_S - SPARE_S), "it is forgotten"


def test_what_lies_between_the_last_step_and_the_next_first_one_is_no_step():
    pace = Pace()
    ended_s = run(pace, 20)
    assert pace.ended(ended_s + STEP_S, ended_s, None) == pytest.approx(STEP_S)
    assert pace.rest_s(ended_s + STEP_S) == 0
    assert pace.ended(200.0, 199.75, 199.875) == 0.25, "what lies between is no step"
    rest_s = pace.rest_s(200)
    assert rest_s == pytest.approx(STEP_S - HOST_S - SPARE_S), "the step on the device will take as long as others did"
