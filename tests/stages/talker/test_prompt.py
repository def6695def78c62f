"""Prompt plans, position by position: the text id, then the code of codebook 0 (–1: none)."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from duotone.stages.errors import RequestError
from duotone.stages.talker.prompt import Reference, Transcript, build_plan

IM_END, IM_START, TTS_PAD, TTS_BOS, TTS_EOS = 268, 270, 271, 272, 273
ASSISTANT, LINE_END = 267, 198
ROLE = [(IM_START, -1), (ASSISTANT, -1), (LINE_END, -1)]
PAD, BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 164, 165, 170, 171, 172, 173
ENGLISH, CHINESE, GERMAN, SICHUAN = 66, 67, 68, 69
ADA, GRACE, LINUS = 964, 965, 966
A, B = 64, 65  # the ids of the letters
X_VECTOR = np.arange(64, dtype=np.float32)
FRAMES = np.arange(32, dtype=np.int16).reshape(2, 16)


def first_codes(plan):
    """(text id, code 0) of each position; no position has other codes."""
    rows = plan.row_ids()
    assert (rows[:, 2:] == -1).all()
    return [tuple(row) for row in rows[:, :2].tolist()]


def tag(*codes):
    return [(TTS_PAD, code) for code in codes] + [(TTS_BOS, PAD)]


@pytest.fixture
def plan(custom_voice, tokenizer):
    """`plan(text, …)` of the custom_voice checkpoint."""
    return lambda *args, **kwargs: build_plan(custom_voice, tokenizer, *args, **kwargs)


@pytest.fixture
def base_plan(custom_voice, tokenizer):
    """`base_plan(text, …)` of the same checkpoint, were it of the kind `base`."""
    return lambda *args, **kwargs: build_plan(replace(custom_voice, kind="base"), tokenizer, *args, **kwargs)


def test_whole_text_with_a_language_and_a_speaker(plan):
    rows = [*ROLE, *tag(THINK, THINK_BOS, ENGLISH, THINK_EOS, ADA)]
    rows += [(A, PAD), (B, PAD), (TTS_EOS, PAD), (TTS_PAD, BOS)]
    built = plan("ab", language="english", speaker="ada", non_streaming=True)
    assert first_codes(built) == rows
    assert (built.trailing_text_ids, built.speaker, built.positions) == ([], None, 13)


def test_streamed_text_trails(plan):
    built = plan("aba", language="english", speaker="ada", non_streaming=False)
    assert first_codes(built) == [*ROLE, *tag(THINK, THINK_BOS, ENGLISH, THINK_EOS, ADA), (A, BOS)]
    assert built.trailing_text_ids == [B, A, TTS_EOS]


def test_streamed_text_of_one_token_trails_with_its_end_alone(plan):
    assert plan("a", non_streaming=False).trailing_text_ids == [TTS_EOS]


def test_unknown_language_is_not_thought_about(plan):
    built = plan("a", language="auto", speaker="grace")
    assert first_codes(built) == [
        *(ROLE + tag(NOTHINK, THINK_BOS, THINK_EOS, GRACE)),
        *((A, PAD), (TTS_EOS, PAD), (TTS_PAD, BOS)),
    ]


@pytest.mark.parametrize(("language", "language_id"), [("auto", SICHUAN), ("chinese", SICHUAN), ("german", GERMAN)])
def test_speaker_of_a_dialect_speaks_it_in_chinese_and_by_default(plan, language, language_id):
    rows = first_codes(plan("a", language=language, speaker="linus"))
    assert rows[3:9] == tag(THINK, THINK_BOS, language_id, THINK_EOS, LINUS)


def test_speaker_without_a_dialect_speaks_plain_chinese(plan):
    assert first_codes(plan("a", language="chinese", speaker="ada"))[5] == (TTS_PAD, CHINESE)


def test_no_speaker_leaves_no_position_for_one(plan):
    assert first_codes(plan("a"))[3:7] == tag(NOTHINK, THINK_BOS, THINK_EOS)


def test_instruction_stands_in_front(voice_design, tokenizer):
    built = build_plan(voice_design, tokenizer, "a", language="english", instruction=" ab\n")
    user = [(token_id, -1) for token_id in (84, 82, 68, 81)]  # u s e r
    instruction = [(IM_START, -1), *user, (LINE_END, -1), (A, -1), (B, -1), (IM_END, -1), (LINE_END, -1)]
    body = [(A, PAD), (TTS_EOS, PAD), (TTS_PAD, BOS)]
    assert first_codes(built) == instruction + ROLE + tag(THINK, THINK_BOS, ENGLISH, THINK_EOS) + body


def test_outer_white_space_is_no_text(plan):
    assert plan("\n a \t") == plan("a")


def test_control_tokens_in_a_text_are_text(plan):
    text_ids = plan("<|im_end|><tts_pad>", non_streaming=True).row_ids()[7:-2, 0]
    assert len(text_ids) == len("<|im_end|><tts_pad>")
    assert not set(text_ids.tolist()) & {IM_END, TTS_PAD}


@pytest.mark.parametrize(("kind", "non_streaming"), [("custom_voice", True), ("voice_design", True), ("base", False)])
def test_default_of_streaming_text_belongs_to_the_kind(custom_voice, tokenizer, kind, non_streaming):
    checkpoint = replace(custom_voice, kind=kind)
    reference = Reference(X_VECTOR) if kind == "base" else None
    default = build_plan(checkpoint, tokenizer, "ab", reference=reference)
    assert default == build_plan(checkpoint, tokenizer, "ab", reference=reference, non_streaming=non_streaming)


def test_x_vector_stands_at_the_speakers_position(base_plan):
    built = base_plan("ab", language="english", reference=Reference(X_VECTOR))
    assert first_codes(built) == [*ROLE, *tag(THINK, THINK_BOS, ENGLISH, THINK_EOS, -1), (A, BOS)]
    assert built.speaker_row == 7
    assert np.array_equal(np.frombuffer(built.speaker, "<f4"), X_VECTOR)


HEAD_ROWS = 8  # role, then a tag of three codes, the x-vector and pad


def test_recording_stands_behind_the_whole_text(base_plan):
    reference = Reference(X_VECTOR, Transcript(" b ", FRAMES))
    built = base_plan("a", reference=reference, non_streaming=True)
    none = [-1] * 15
    assert built.row_ids()[HEAD_ROWS:].tolist() == [
        [B, PAD, *none],
        [A, PAD, *none],
        [TTS_EOS, PAD, *none],
        [TTS_PAD, BOS, *none],
        [TTS_PAD, *range(16)],
        [TTS_PAD, *range(16, 32)],
    ]
    assert (built.trailing_text_ids, built.speaker_row) == ([], 6)


def test_recording_stands_beside_streamed_text_whose_rest_trails(base_plan):
    built = base_plan("aab", reference=Reference(X_VECTOR, Transcript("b", FRAMES)), non_streaming=False)
    assert built.row_ids()[HEAD_ROWS:].tolist() == [[B, BOS, *[-1] * 15], [A, *range(16)], [A, *range(16, 32)]]
    assert built.trailing_text_ids == [B, TTS_EOS]


def test_recording_longer_than_streamed_text_is_filled_with_pad(base_plan):
    frames = np.tile(FRAMES, (2, 1))
    built = base_plan("a", reference=Reference(X_VECTOR, Transcript("b", frames)), non_streaming=False)
    assert built.row_ids()[HEAD_ROWS:, 0].tolist() == [B, A, TTS_EOS, TTS_PAD, TTS_PAD]
    assert built.row_ids()[HEAD_ROWS:, 1].tolist() == [BOS, 0, 16, 0, 16]
    assert built.trailing_text_ids == []


def test_blank_text_is_refused(plan):
    with pytest.raises(RequestError, match="nothing to say") as refused:
        plan(" \n ")
    assert refused.value.param == "input"


def test_plans_are_built_without_torch():
    script = "import sys, duotone.stages.talker.prompt; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_voice_of_another_model_is_refused(base_plan):
    with pytest.raises(RequestError, match="another model") as refused:
        base_plan("a", reference=Reference(X_VECTOR[:-1]))
    assert refused.value.param == "voice"
