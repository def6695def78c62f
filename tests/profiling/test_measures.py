"""Figures from hand-made records, each equal to what a pencil gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duotone.profiling import measures
from duotone.profiling.figures import FIGURES, summary_table
from duotone.profiling.measures import Distribution, Record, distribution, flaw, summarise, underrun_s
from duotone.stages import types

FRAME_BYTES = 3840
FRAME_S = 0.08


def record(index, sent_s, arrivals_s, frames, ended_s, failure=None):
    """A record whose every chunk holds so many frames."""
    return Record(index, sent_s, ended_s, 200, failure, list(arrivals_s), [frames * FRAME_BYTES] * len(arrivals_s))


def test_the_audio_is_what_the_pipeline_makes():
    assert (measures.SAMPLE_RATE, measures.SAMPLES_PER_FRAME) == (types.SAMPLE_RATE, types.SAMPLES_PER_FRAME)


def test_a_single_value_is_every_percentile():
    assert distribution([7.0]) == Distribution(7.0, 7.0, 7.0, 7.0, 7.0)


def test_no_values_have_no_distribution():
    assert distribution([]) is None


def test_percentiles_are_interpolated_between_neighbours_in_any_order():
    values = distribution([30.0, 10.0, 40.0, 20.0])
    assert (values.p50, values.p90, values.p99) == pytest.approx((25.0, 37.0, 39.7))
    assert (values.mean, values.max) == (25.0, 40.0)


def test_a_listener_who_always_has_audio_waits_for_nothing():
    assert underrun_s([5.0, 5.07, 5.15], [FRAME_BYTES] * 3) == 0


def test_each_wait_of_a_listener_counts_and_delays_all_that_follows():
    # Dry at 0.08, on at 0.10, dry at 0.18; the third chunk holds two frames and comes at 0.25: dry at 0.41.
    sizes = [FRAME_BYTES, FRAME_BYTES, 2 * FRAME_BYTES, FRAME_BYTES]
    assert underrun_s([0.0, 0.10, 0.25, 0.40], sizes) == pytest.approx(0.02 + 0.07)
    assert underrun_s([0.0, 0.10, 0.25, 0.50], sizes) == pytest.approx(0.02 + 0.07 + 0.09)


def test_audio_that_came_early_is_a_reserve():
    assert underrun_s([0.0, 0.01, 0.30], [FRAME_BYTES, 3 * FRAME_BYTES, FRAME_BYTES]) == 0
    assert underrun_s([0.0, 0.01, 0.33], [FRAME_BYTES, 3 * FRAME_BYTES, FRAME_BYTES]) == pytest.approx(0.01)


def test_a_body_that_never_came_has_no_underrun():
    assert underrun_s([], []) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50_000)), min_size=1, max_size=40))
def test_a_listener_ends_after_all_audio_and_all_waits(pieces):
    arrivals_s, at_s = [], 100.0
    for pause_s, _ in pieces:
        at_s += pause_s
        arrivals_s.append(at_s)
    sizes = [size for _, size in pieces]
    last_audio_s = sizes[-1] / 48_000
    played_s = sum(sizes) / 48_000
    # The last chunk cannot be played before it has come, nor before what precedes it has been played.
    end_s = arrivals_s[0] + played_s + underrun_s(arrivals_s, sizes)
    assert end_s >= arrivals_s[-1] + last_audio_s - 1e-9
    # And without a pause in the arrivals nobody waits.
    assert underrun_s([100.0] * len(sizes), sizes) == 0


@pytest.mark.parametrize(
    ("chunk_bytes", "words"), [([], "no audio"), ([0], "no audio"), ([3, 4], "half a sample"), ([3, 5], None)]
)
def test_a_whole_body_is_an_answer_when_it_holds_whole_samples(chunk_bytes, words):
    assert flaw(chunk_bytes) == words


def summary():
    """Two good answers of two frames, one of three where two were asked for, two failures."""
    records = [
        record(0, 10.0, [10.1, 10.2], 1, 10.25),  # dry from 10.18 to 10.20
        record(1, 10.0, [10.3, 10.35], 1, 10.40),
        record(2, 10.5, [10.6, 10.65, 10.7], 1, 11.0),
        record(3, 10.5, [10.6], 1, 12.0, "the answer was cut off"),
        record(4, 10.6, [], 1, 10.7, "HTTP 503 not_ready"),
    ]
    warmup = [record(5, 9.0, [], 1, 9.1, "no audio")]
    return summarise(records, warmup, streams=2, frames=2, client_cpu_s=0.1)


def test_a_summary_counts_what_completed_and_why_the_rest_did_not():
    assert (summary().requests, summary().completed) == (5, 3)
    assert summary().failures == {"the answer was cut off": 1, "HTTP 503 not_ready": 1}
    assert summary().warmup_failures == {"no audio": 1}
    assert summary().inexact == 1


def test_rates_are_of_completed_answers_over_the_time_from_first_request_to_last_end():
    assert summary().wall_s == pytest.approx(2.0)
    assert summary().requests_per_s == pytest.approx(3 / 2)
    assert summary().audio_s_per_s == pytest.approx(7 * FRAME_S / 2)
    assert summary().client_cores == pytest.approx(0.05)


def test_times_are_taken_from_each_request_and_gaps_within_each_answer():
    assert summary().first_audio_s.p50 == pytest.approx(0.1)
    assert summary().first_audio_s.max == pytest.approx(0.3)
    assert summary().end_to_end_s.mean == pytest.approx((0.25 + 0.4 + 0.5) / 3)
    assert summary().gap_s.mean == pytest.approx((0.1 + 0.05 + 0.05 + 0.05) / 4)
    assert summary().gap_s.max == pytest.approx(0.1)
    assert summary().real_time_factor.mean == pytest.approx((0.25 / 0.16 + 0.4 / 0.16 + 0.5 / 0.24) / 3)


def test_listeners_of_completed_answers_are_followed_to_see_who_ran_dry():
    assert summary().dry_listeners == 1
    assert summary().underrun_s == pytest.approx(0.02)
    assert summary().continuity == pytest.approx(2 / 3)


def test_a_load_without_any_answer_has_figures_all_the_same():
    nothing = summarise([record(0, 1.0, [], 1, 1.5, "no connection")], [], streams=1, frames=None, client_cpu_s=0)
    assert (nothing.completed, nothing.requests_per_s, nothing.audio_s_per_s) == (0, 0, 0)
    assert nothing.first_audio_s is nothing.gap_s is nothing.continuity is nothing.inexact is None


def test_the_table_shows_every_figure_in_its_unit():
    values = {figure.name: figure.read(summary()) for figure in FIGURES}
    expected = {
        "requests completed": 3,
        "requests failed": 2,
        "answers of a wrong length": 1,
        "wall time, s": 2.0,
        "requests a second": 1.5,
        "audio seconds a second": 0.28,
        "first audio p50, ms": 100,
        "first audio p90, ms": 260,
        "first audio p99, ms": 296,
        "first audio mean, ms": 500 / 3,
        "end to end mean, s": 1.15 / 3,
        "end to end p50, s": 0.4,
        "end to end p99, s": 0.498,
        "gap between chunks p50, ms": 50,
        "gap between chunks p99, ms": 98.5,
        "gap between chunks max, ms": 100,
        "real-time factor mean": (0.25 / 0.16 + 0.4 / 0.16 + 0.5 / 0.24) / 3,
        "real-time factor p99": 2.5 - 0.02 * (2.5 - 0.5 / 0.24),
        "listeners run dry": 1,
        "underrun in all, s": 0.02,
        "continuity, %": 200 / 3,
        "client's CPU, cores": 0.05,
    }
    assert values == pytest.approx(expected)


def test_the_table_says_below_what_went_wrong():
    table = summary_table([summary()], [])
    assert str(table.caption).splitlines() == [
        "2 streams: 1 failed: the answer was cut off",
        "2 streams: 1 failed: HTTP 503 not_ready",
        "2 streams: 1 failed while warming up: no audio",
    ]


def test_the_table_warns_of_a_client_that_was_too_busy():
    busy = summarise([record(0, 0.0, [0.5], 1, 1.0)], [], streams=1, frames=None, client_cpu_s=0.9)
    assert "kept 0.90 cores busy" in str(summary_table([busy], []).caption)
