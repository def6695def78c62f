"""Teacher-forced sequences: what is read where, and what each position predicts."""

import numpy as np
import pytest
import torch

from duotone.voices.recipe import sizes
from duotone.voices.recipe.prompts import ENGLISH_TAG, IGNORED, Prepared, Utterances
from duotone.voices.recipe.sizes import TALKER

EOS = TALKER.codec_eos_token_id
TAG_END = 3 + len(ENGLISH_TAG)
CODES = [np.arange(frames * 16, dtype=np.uint8).reshape(frames, 16) % 128 for frames in (2, 3)]
TEXTS = [[11, 12], [21, 22, 23, 24]]


@pytest.fixture
def utterances() -> Utterances:
    """Two of them, the second one added behind the first."""
    made = Utterances(100, torch.device("cpu"))
    for codes, text in zip(CODES, TEXTS, strict=True):
        spoken = np.zeros((len(codes) + 1, 2), np.int16)
        made.add(Prepared(np.asarray([len(codes)]), [codes], np.asarray(text, np.int16), [len(text)], spoken))
    made.index()
    return made


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("streaming", [False, True])
def test_each_position_predicts_the_frame_behind_it_and_the_last_one_the_end(
    utterances: Utterances, which: int, streaming: bool
) -> None:
    batch = utterances.batch(torch.tensor([which]), 24, streaming, english=True, noise=0.0)
    codes, text = CODES[which], TEXTS[which]
    bos = TAG_END if streaming else TAG_END + len(text) + 1
    wanted = [IGNORED] * bos + [*codes[:, 0].tolist(), EOS]
    assert batch.first_codes[0].tolist() == wanted + [IGNORED] * (24 - len(wanted))
    assert batch.frames[0, bos : bos + len(codes)].tolist() == codes.tolist()


@pytest.mark.parametrize("streaming", [False, True])
def test_the_text_stands_behind_the_tag_and_frames_behind_bos(utterances: Utterances, streaming: bool) -> None:
    batch = utterances.batch(torch.tensor([1]), 24, streaming, english=True, noise=0.0)
    text = [*TEXTS[1], sizes.TTS_EOS]
    assert batch.text_ids[0, TAG_END : TAG_END + len(text)].tolist() == text
    bos = TAG_END if streaming else TAG_END + len(text)
    assert batch.code_rows[0, bos, 0] == TALKER.codec_bos_id
    read = batch.code_rows[0, bos + 1 : bos + 1 + len(CODES[1])]
    assert read[:, 0].tolist() == CODES[1][:, 0].tolist()
    assert (read[:, 1] - TALKER.vocab_size).tolist() == CODES[1][:, 1].tolist()


def test_an_utterance_is_drawn_into_a_length_that_holds_it(utterances: Utterances) -> None:
    rows, length = utterances.draw(96, np.random.default_rng(0))
    assert length == 48
    assert len(rows) == 2
