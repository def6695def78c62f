"""One engine that cuts prompts into pieces, and all that requests may do in it."""

import gc
import time
import weakref

import msgspec
import numpy as np
import pytest

from duotone.stages.checkpoint import read_checkpoint
from duotone.stages.messages import Abort, Speak
from duotone.stages.pipeline import TalkerOptions
from duotone.stages.talker.torch_engine import TorchTalkerEngine
from duotone.stages.types import PromptPlan, Sampling

from ..golden_outputs import GOLDEN
from .talking import GREEDY, assert_golden, golden_cases, speak, started, talk

pytestmark = pytest.mark.filterwarnings("default")
CUSTOM_VOICE = golden_cases(GOLDEN / "custom_voice")
SAMPLED = Sampling(seed=7, max_new_frames=12, min_new_frames=12)
LONG_CASE = max(CUSTOM_VOICE, key=lambda case: case.plan.positions)


@pytest.fixture(scope="module")
def pieces():
    """Cuts every prompt into pieces of at most 16 positions, fewer beside requests that decode."""
    with started(GOLDEN / "custom_voice", max_num_batched_tokens=16) as engine:
        yield engine


def test_golden_codes_of_prompts_prefilled_in_pieces(pieces):
    assert min(case.plan.positions for case in CUSTOM_VOICE) > 16 // 2
    assert_golden(talk(pieces, {key: speak(key, case) for key, case in enumerate(CUSTOM_VOICE)}), CUSTOM_VOICE)


def test_golden_codes_of_requests_that_join_and_leave_at_different_steps(pieces):
    requests = {key: speak(key, case) for key, case in enumerate(CUSTOM_VOICE)}
    assert_golden(talk(pieces, requests, joins=lambda key: 5 * (key % 7)), CUSTOM_VOICE)


def test_golden_codes_of_more_requests_than_slots(pieces):
    cases = CUSTOM_VOICE + CUSTOM_VOICE
    assert len(cases) > pieces.slots
    assert_golden(talk(pieces, {key: speak(key, case) for key, case in enumerate(cases)}), cases)


def test_a_cloned_voice_speaks_as_on_the_torch_engine(pieces):
    checkpoint = read_checkpoint(GOLDEN / "custom_voice" / "checkpoint")
    random = np.random.default_rng(0)
    rows = LONG_CASE.plan.row_ids().copy()
    rows[-6:, 1:] = random.integers(0, 60, (6, 16))  # frames of a reference
    speaker = random.normal(size=checkpoint.talker.hidden_size).astype("<f4").tobytes()
    plan = PromptPlan(rows.tobytes(), trailing_text_ids=[5, 6, 7], speaker=speaker, speaker_row=18)
    unspoken = msgspec.structs.replace(plan, speaker=None)
    requests = {0: Speak(0, plan, GREEDY), 1: Speak(1, unspoken, GREEDY)}
    expected = talk(TorchTalkerEngine(checkpoint, TalkerOptions()), requests)
    assert (expected.codes(0) != expected.codes(1)).any(), "the speaker must matter"
    result = talk(pieces, requests)
    for key in requests:
        np.testing.assert_array_equal(result.codes(key), expected.codes(key))


def test_sampled_codes_depend_on_the_seed_of_their_request_alone(pieces):
    def codes(seeds):
        requests = {
            key: Speak(key, CUSTOM_VOICE[key % 4].plan, msgspec.structs.replace(SAMPLED, seed=seed))
            for key, seed in enumerate(seeds)
        }
        result = talk(pieces, requests)
        return [result.codes(key) for key in requests]

    first, again, other = codes([1, 2, 3, 4]), codes([1, 2, 3, 4]), codes([1, 20, 3, 40])
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal([first[0], first[2]], [other[0], other[2]])
    for key in (1, 3):
        assert (first[key] != other[key]).any(axis=0).all(), "every codebook must see another seed"


def test_a_greedy_request_beside_sampled_ones_keeps_its_codes(pieces):
    requests = {0: speak(0, LONG_CASE)} | {key: Speak(key, LONG_CASE.plan, SAMPLED) for key in (1, 2, 3)}
    result = talk(pieces, requests)
    np.testing.assert_array_equal(result.codes(0), LONG_CASE.codes)


def test_the_code_predictor_has_a_temperature_of_its_own_unless_the_request_is_greedy(pieces):
    def request(key, **changes):
        return Speak(key, LONG_CASE.plan, msgspec.structs.replace(SAMPLED, **changes))

    requests = {0: request(0, subtalker_temperature=0.0), 1: request(1), 2: request(2, temperature=0.0)}
    result = talk(pieces, requests)
    greedy_later, sampled, greedy = (result.codes(key)[0] for key in requests)
    assert greedy_later[0] == sampled[0], "the same seed draws the same code 0"
    assert (greedy_later[1:] != sampled[1:]).any()
    np.testing.assert_array_equal(greedy, LONG_CASE.codes[0])


def test_an_aborted_request_is_silent_and_the_others_keep_their_codes(pieces):
    def abort_some(result):
        if result.steps == 12:
            pieces.accept(Abort([1, 3, 99]))
            heard.update({key: len(result.frames.get(key, [])) for key in (1, 3)})

    heard: dict[int, int] = {}
    result = talk(pieces, {key: speak(key, case) for key, case in enumerate(CUSTOM_VOICE[:6])}, each_step=abort_some)
    assert not {1, 3} & set(result.reasons)
    assert {key: len(result.codes(key)) for key in (1, 3)} == heard
    for key in (0, 2, 4, 5):
        np.testing.assert_array_equal(result.codes(key), CUSTOM_VOICE[key].codes)


def test_the_number_of_frames_can_be_fixed(pieces):
    fixed = msgspec.structs.replace(GREEDY, min_new_frames=15, max_new_frames=15)
    ends_early = next(case for case in CUSTOM_VOICE if len(case.codes) < 15)
    result = talk(pieces, {0: Speak(0, ends_early.plan, fixed), 1: Speak(1, LONG_CASE.plan, fixed)})
    assert [len(result.codes(key)) for key in (0, 1)] == [15, 15]
    assert result.reasons == {0: "length", 1: "length"}


def test_nothing_is_kept_of_requests_that_are_over(pieces):
    requests = {key: speak(key, case) for key, case in enumerate(CUSTOM_VOICE[:4])}
    kept = []

    def watch(result):
        kept.extend(weakref.ref(request) for request in pieces._requests.values() if result.steps == 6)
        if result.steps == 8:
            pieces.accept(Abort([0]))

    talk(pieces, requests, each_step=watch)
    talk(pieces, {9: speak(9, CUSTOM_VOICE[0])})  # vLLM lets go of a batch when the next one comes
    gc.collect()
    assert len(kept) == len(requests)
    assert [reference() for reference in kept if reference() is not None] == []
    assert not pieces._requests


def replace_rows(plan, count):
    """The plan with its first rows repeated to `count`."""
    rows = np.resize(plan.row_ids(), (count, plan.row_ids().shape[1]))
    return msgspec.structs.replace(plan, rows=rows.tobytes())


def test_a_step_takes_from_the_end_of_the_one_before_it_whatever_is_planned_in_between(pieces):
    for key in (1, 2):
        pieces.accept(speak(key, CUSTOM_VOICE[0]))
        assert pieces.rest_s() == 0, "nothing is on the device"
        began_s, made = time.perf_counter(), []
        while pieces.has_work():
            made.append(pieces.step())
            assert pieces.rest_s() < time.perf_counter() - began_s
        elapsed_s, made = time.perf_counter() - began_s, [step for step in made if step is not None]
        assert sum(len(step.keys) for step in made) == len(CUSTOM_VOICE[0].codes)
        assert 0 < sum(step.step_s for step in made) <= elapsed_s
