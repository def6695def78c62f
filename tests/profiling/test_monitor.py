"""Windows are exact at their borders: a peak is in one window only, and what is still queued opens the next."""

import json

from hypothesis import given
from hypothesis import strategies as st

from duotone.profiling.monitor import Monitor, Queue


def test_a_burst_drained_before_the_border_shows_in_its_window_only():
    monitor = Monitor(start_s=0.0)
    for _ in range(5):
        monitor.queued("talker-0", 0.1)
    for _ in range(5):
        monitor.taken("talker-0", 0.2)
    monitor.advance(2.0)
    first, second = monitor.windows
    assert (first.dispatch, first.outputs["talker-0"]) == (Queue(0, 5), Queue(0, 5))
    assert (second.dispatch, second.outputs["talker-0"]) == (Queue(0, 0), Queue(0, 0))


def test_what_is_still_queued_opens_the_next_window():
    monitor = Monitor(start_s=0.0)
    for _ in range(4):
        monitor.queued("talker-0", 0.9)
    monitor.taken("talker-0", 1.1)
    monitor.queued("code2wav-0", 1.2)
    monitor.advance(2.0)
    first, second = monitor.windows
    assert first.dispatch == Queue(4, 4)
    assert second.dispatch == Queue(4, 4)
    assert second.outputs == {"talker-0": Queue(3, 4), "code2wav-0": Queue(1, 1)}


def test_an_event_on_the_border_belongs_to_the_window_it_opens():
    monitor = Monitor(start_s=0.0)
    monitor.queued("talker-0", 1.0)
    monitor.advance(2.0)
    assert [window.dispatch.high_water for window in monitor.windows] == [0, 1]


def test_turns_are_counted_in_the_window_they_fall_in():
    monitor = Monitor(start_s=0.0)
    monitor.turn(active=True, now_s=0.5)
    monitor.turn(active=False, now_s=0.6)
    monitor.turn(active=False, now_s=1.5)
    monitor.advance(3.0)
    assert [(w.turns_active, w.turns_idle) for w in monitor.windows] == [(1, 1), (0, 1), (0, 0)]
    assert monitor.total_turns == {"active": 1, "idle": 2}


def test_a_scrape_sees_the_largest_mark_of_the_last_minute_and_forgets_it_then():
    monitor = Monitor(start_s=0.0)
    for _ in range(9):
        monitor.queued("talker-0", 0.0)
    for _ in range(9):
        monitor.taken("talker-0", 0.0)
    monitor.advance(60.5)
    assert monitor.recent_high_water() == monitor.recent_high_water("talker-0") == 9
    monitor.advance(61.5)
    assert monitor.recent_high_water() == monitor.recent_high_water("talker-0") == 0


def test_every_window_is_written_when_all_are_kept(tmp_path):
    monitor = Monitor(keep_all=True, start_s=0.0)
    monitor.requests_in_flight = 3
    monitor.queued("talker-0", 70.5)
    monitor.write(tmp_path / "windows.json", 71.2)
    windows = json.loads((tmp_path / "windows.json").read_text())
    assert [window["start_s"] for window in windows] == [float(second) for second in range(72)]
    assert windows[70]["dispatch"] == {"size": 1, "high_water": 1}
    assert windows[71]["outputs"] == {"talker-0": {"size": 1, "high_water": 1}}
    assert windows[71]["requests_in_flight"] == 3


def test_only_the_recent_windows_are_held_otherwise():
    monitor = Monitor(start_s=0.0)
    monitor.advance(10_000.0)
    assert len(monitor.windows) == 60


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.7)), max_size=60))
def test_marks_and_sizes_agree_with_a_plain_count(steps):
    monitor, now_s, depth, expected = Monitor(keep_all=True, start_s=0.0), 0.0, 0, {0: 0}
    for put, pause_s in steps:
        before_s, now_s = now_s, now_s + pause_s
        for window in range(int(before_s), int(now_s) + 1):
            expected.setdefault(window, depth)
        if put:
            monitor.queued("talker-0", now_s)
            depth += 1
        elif depth:
            monitor.taken("talker-0", now_s)
            depth -= 1
        expected[int(now_s)] = max(expected[int(now_s)], depth)
    monitor.advance(now_s + 1)
    assert [window.dispatch.high_water for window in monitor.windows] == list(expected.values())[: len(monitor.windows)]
