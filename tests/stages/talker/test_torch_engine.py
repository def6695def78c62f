"""The engine gives the reference's codes, and every request its own, whatever else runs."""

import random

import msgspec
import numpy as np
import pytest
import torch

from duotone.stages.messages import Abort, Ended, Failed, Speak
from duotone.stages.pipeline import TalkerOptions
from duotone.stages.talker.prompt import build_plan
from duotone.stages.talker.sampling import Draw, DrawRows
from duotone.stages.talker.torch_engine import TorchTalkerEngine
from duotone.stages.talker.torch_runner import BackboneRunner, FrameRunner
from duotone.stages.talker.torch_weights import TalkerWeights
from duotone.stages.types import NO_CODE, PromptPlan, Sampling

from ...golden_outputs import spoken_cases
from .driving import Answers, alone, drive

SLOTS = 8
MAX_POSITIONS = 128
MAX_FRAMES = 23  # the reference's 24 new tokens


CUSTOM_VOICE, VOICE_DESIGN = spoken_cases("custom_voice"), spoken_cases("voice_design")
STOPPING = CUSTOM_VOICE[13]
"""The one case that the model ends itself, after 8 frames."""


def options(**changes):
    return TalkerOptions(**{"slots": SLOTS, "max_positions": MAX_POSITIONS} | changes)


@pytest.fixture(scope="module")
def engine(custom_voice):
    return TorchTalkerEngine(custom_voice, options())


@pytest.fixture(scope="module")
def design_engine(voice_design):
    return TorchTalkerEngine(voice_design, options(slots=14))


@pytest.fixture
def golden_speak(custom_voice, voice_design, tokenizer):
    """`golden_speak(key, case, …)`: the case as a greedy request; sampling parameters can be changed."""

    def speak(key, case, **changes):
        plan = case.plan(custom_voice if case.instruct is None else voice_design, tokenizer)
        return Speak(key, plan, msgspec.structs.replace(case.sampling, **changes))

    return speak


@pytest.fixture
def sampled_speak(custom_voice, tokenizer):
    """`sampled_speak(key, …)`: a request whose text, length and parameters all depend on the key; seed 7."""

    def speak(key, **changes):
        text = "The in the thin hen. "[: 3 + 2 * key] * (1 + key % 3)
        plan = build_plan(custom_voice, tokenizer, text, speaker="ada", non_streaming=key % 2 == 0)
        sampling = Sampling(
            seed=7,
            temperature=(0.9, 1.3)[key % 2],
            top_k=(50, 0, 20)[key % 3],
            top_p=(1.0, 0.8)[key // 4],
            repetition_penalty=(1.0, 1.2)[key // 2 % 2],
            max_new_frames=12 + key,
            subtalker_temperature=(0.9, 0.9, 0.0)[key % 3],
        )
        return Speak(key, plan, msgspec.structs.replace(sampling, **changes))

    return speak


@pytest.mark.parametrize("case", CUSTOM_VOICE, ids=lambda case: case.name)
def test_greedy_codes_of_a_voice_are_the_references(engine, golden_speak, case):
    assert np.array_equal(alone(engine, golden_speak(0, case)), case.codes)


@pytest.mark.parametrize("case", VOICE_DESIGN, ids=lambda case: case.name)
def test_greedy_codes_of_a_described_voice_are_the_references(design_engine, golden_speak, case):
    assert np.array_equal(alone(design_engine, golden_speak(0, case)), case.codes)


@pytest.mark.parametrize("order", range(3))
def test_all_cases_at_once_give_the_references_codes(custom_voice, design_engine, golden_speak, order):
    """Started at different steps, with prompts of different length and penalties beside none."""
    steps = random.Random(order)
    wide = TorchTalkerEngine(custom_voice, options(slots=14))
    for engine, cases in ((wide, CUSTOM_VOICE), (design_engine, VOICE_DESIGN)):
        answers = drive(engine, [(steps.randrange(20), golden_speak(key, case)) for key, case in enumerate(cases)])
        for key, case in enumerate(cases):
            assert np.array_equal(answers.codes(key), case.codes), case.name


@pytest.mark.parametrize("order", range(4))
def test_same_seed_gives_the_same_codes_alone_and_beside_seven_others(engine, sampled_speak, order):
    expected = {key: alone(engine, sampled_speak(key)) for key in range(SLOTS)}
    assert len({codes.tobytes() for codes in expected.values()}) == SLOTS
    steps = random.Random(order)
    answers = drive(engine, [(steps.randrange(12), sampled_speak(key)) for key in steps.sample(range(SLOTS), SLOTS)])
    assert max(event.batch for event in answers.events) == SLOTS
    for key, codes in expected.items():
        assert len(codes) > 2
        assert np.array_equal(answers.codes(key), codes)


def test_different_seeds_give_different_codes(engine, sampled_speak):
    other = msgspec.structs.replace(sampled_speak(0, seed=2), key=1)
    answers = drive(engine, [(0, sampled_speak(0, seed=1)), (0, other)])
    assert not np.array_equal(answers.codes(0)[0], answers.codes(1)[0])


@torch.inference_mode()
def test_batch_leaves_every_bit_of_a_row_as_it_is_alone(custom_voice):
    """Equal codes could hide differences too small to matter in a few frames."""
    config = custom_voice.talker
    weights = TalkerWeights.load(custom_voice, torch.device("cpu"), torch.float32)
    backbone = BackboneRunner(config, weights, SLOTS, MAX_POSITIONS)
    frames = FrameRunner(config.code_predictor_config, weights, SLOTS)
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 40, 17, 16, 1, 64, 5, 33]
    for slot, length in enumerate(lengths):
        backbone.prefill(slot, torch.randn(1, length, config.hidden_size, generator=generator))
    inputs = torch.randn(SLOTS, 1, config.hidden_size, generator=generator)
    together = backbone.decode(list(range(SLOTS)), lengths, inputs)
    singly = [backbone.decode([slot], lengths[slot : slot + 1], inputs[slot : slot + 1]) for slot in range(SLOTS)]
    assert torch.equal(together, torch.cat(singly))
    first_logits = weights.first_code_logits(together)
    assert torch.equal(first_logits, torch.cat([weights.first_code_logits(row) for row in singly]))

    draw, codes = Draw(0.9, 20, 0.9), first_logits[:, :64].argmax(-1)
    uniform = torch.rand(SLOTS, 16, generator=generator)
    completed = frames.complete(together, codes, DrawRows.of([draw] * SLOTS, torch.device("cpu")), uniform)
    one = DrawRows.of([draw], torch.device("cpu"))
    for slot in range(SLOTS):
        row = slice(slot, slot + 1)
        assert torch.equal(completed[row], frames.complete(together[row], codes[row], one, uniform[row]))
    assert torch.equal(weights.embed_frames(completed)[3:4], weights.embed_frames(completed[3:4]))


def test_requests_beyond_the_slots_wait_and_lose_nothing(custom_voice, sampled_speak):
    narrow = TorchTalkerEngine(custom_voice, options(slots=2))
    answers = drive(narrow, [(0, sampled_speak(key)) for key in range(6)])
    assert max(event.batch for event in answers.events) == 2
    for key in range(6):
        assert np.array_equal(answers.codes(key), alone(narrow, sampled_speak(key)))


def test_one_prompt_a_step_joins_the_running_streams(engine, sampled_speak):
    answers = drive(engine, [(0, sampled_speak(0)), (2, sampled_speak(2)), (2, sampled_speak(4))])
    assert [event.keys for event in answers.events[:4]] == [[0], [0], [0, 2], [0, 2, 4]]
    assert all(event.step_s > 0 for event in answers.events)


@pytest.mark.parametrize("aborted", [0, 1, 2])
def test_abort_frees_the_slot_and_changes_nobody(custom_voice, sampled_speak, aborted):
    engine = TorchTalkerEngine(custom_voice, options(slots=3))
    expected = {key: alone(engine, sampled_speak(key)) for key in range(4)}
    commands = [(0, sampled_speak(key)) for key in range(4)]  # three run, the fourth waits
    answers = drive(engine, [*commands, (6, Abort([aborted, 99]))])
    before = answers.codes(aborted)
    assert 0 < len(before) < len(expected[aborted])
    assert np.array_equal(before, expected[aborted][: len(before)])
    assert answers.reasons.keys() == {0, 1, 2, 3} - {aborted}
    for key in answers.reasons:
        assert np.array_equal(answers.codes(key), expected[key])
    # The fourth took the slot in the step after the abort, long before another stream ended.
    assert [3 in event.keys for event in answers.events[:7]] == [False] * 6 + [True]


def test_abort_of_a_waiting_request_forgets_it(custom_voice, sampled_speak):
    engine = TorchTalkerEngine(custom_voice, options(slots=1))
    answers = drive(engine, [(0, sampled_speak(0)), (0, sampled_speak(1)), (1, Abort([1]))])
    assert answers.frames.keys() == {0}


def test_abort_of_the_only_request_leaves_no_work(engine, sampled_speak):
    engine.accept(sampled_speak(0))
    engine.step()
    engine.accept(Abort([0]))
    assert not engine.has_work()


def test_end_of_the_model_is_no_frame(engine, golden_speak):
    answers = drive(engine, [(0, golden_speak(0, STOPPING))])
    assert [event.keys for event in answers.events] == [[0]] * 8 + [[]]
    assert answers.events[-1].ended == [Ended(0, "stop")]


def test_minimum_of_frames_is_honoured(engine, golden_speak):
    longer = alone(engine, golden_speak(0, STOPPING, min_new_frames=12))
    assert len(longer) >= 12
    assert np.array_equal(longer[:8], STOPPING.codes)


@pytest.mark.parametrize("frames", [1, 5])
def test_maximum_of_frames_ends_with_the_last_one(engine, golden_speak, frames):
    answers = drive(engine, [(0, golden_speak(0, CUSTOM_VOICE[0], max_new_frames=frames))])
    assert np.array_equal(answers.codes(0), CUSTOM_VOICE[0].codes[:frames])
    assert answers.events[-1].keys == [0]
    assert answers.events[-1].ended == [Ended(0, "length")]


def test_x_vector_stands_in_for_a_speakers_embedding(engine, custom_voice, golden_speak):
    """The vector that the checkpoint holds for a speaker, sent as a vector, gives that speaker's codes."""
    case = CUSTOM_VOICE[0]
    speak = golden_speak(0, case)
    rows = speak.plan.row_ids().copy()
    (row,) = np.flatnonzero(rows[:, 1] == custom_voice.talker.spk_id["ada"])
    rows[row, 1] = NO_CODE
    name = "talker.model.codec_embedding.weight"
    vector = custom_voice.weights.load([name], torch.float32)[name][custom_voice.talker.spk_id["ada"]]
    plan = PromptPlan(rows.tobytes(), speak.plan.trailing_text_ids, vector.numpy().tobytes(), int(row))
    assert np.array_equal(alone(engine, msgspec.structs.replace(speak, plan=plan)), case.codes)


def test_frames_in_a_prompt_are_the_sum_of_all_codebooks(custom_voice, sampled_speak):
    """A prompt's row of 16 codes is what the engine itself feeds after a frame of these codes."""
    weights = TalkerWeights.load(custom_voice, torch.device("cpu"), torch.float32)
    codes = np.arange(16) * 3 % 64
    plan = PromptPlan(np.array([[271, *codes]], "<i4").tobytes())
    embedded = weights.embed_frames(torch.from_numpy(codes[None])) + weights.embed_text([271])
    assert torch.equal(weights.embed_prompt(plan)[0], embedded)


def test_bfloat16_makes_frames_of_real_codes(custom_voice, sampled_speak):
    engine = TorchTalkerEngine(custom_voice, options(dtype="bfloat16"))
    answers: Answers = drive(engine, [(key, sampled_speak(key, min_new_frames=12)) for key in range(3)])
    for key in range(3):
        codes = answers.codes(key)
        assert len(codes) == 12 + key
        assert codes.min() >= 0
        assert codes.max() < 64


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("joins_at", [0, 4])
def test_a_request_that_overflows_fails_alone_and_leaves_nothing_behind(custom_voice, sampled_speak, poison, joins_at):
    engine = TorchTalkerEngine(custom_voice, options(slots=2))
    expected = alone(engine, sampled_speak(1)), alone(engine, sampled_speak(2))
    speaker = np.full(custom_voice.talker.hidden_size, poison, "<f4").tobytes()
    poisoned = sampled_speak(0)
    poisoned = Speak(0, msgspec.structs.replace(poisoned.plan, speaker=speaker, speaker_row=3), poisoned.sampling)
    answers, failed = Answers(), []
    engine.accept(sampled_speak(1))
    for step in range(100):
        if step == joins_at:
            engine.accept(poisoned)
            engine.accept(sampled_speak(2))  # Takes the slot that the failed one has left.
        if engine.has_work():
            event = engine.step()
            failed += event.keys if isinstance(event, Failed) else answers.take(event) or []
    assert failed == [0]
    assert answers.frames.keys() == {1, 2}
    assert np.array_equal(answers.codes(1), expected[0])
    assert np.array_equal(answers.codes(2), expected[1])
