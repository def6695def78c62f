"""Text becomes the ids that the model was trained on, and never a control token."""

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.decoders import ByteLevel

from duotone.stages.errors import CheckpointError
from duotone.stages.talker.tokenizer import Tokenizer

from ...golden_outputs import CUSTOM_VOICE

VOCAB = json.loads((CUSTOM_VOICE / "vocab.json").read_text())
TOKENS = {token_id: token for token, token_id in VOCAB.items()}


def spelled(tokenizer, text):
    """The tokens of a text as they stand in vocab.json: Ġ is a space, Ċ a line end."""
    return [TOKENS[token_id] for token_id in tokenizer.encode(text)]


@pytest.fixture
def checkpoint_with(tmp_path, custom_voice):
    """`checkpoint_with(tokens, merges)`: the golden checkpoint whose tokenizer knows more."""

    def build(tokens=(), merges=()):
        vocab = VOCAB | {token: 300 + index for index, token in enumerate(tokens)}
        lines = (CUSTOM_VOICE / "merges.txt").read_text().splitlines()
        (tmp_path / "vocab.json").write_text(json.dumps(vocab))
        (tmp_path / "merges.txt").write_text("\n".join([*lines, *merges]) + "\n")
        return replace(custom_voice, directory=tmp_path)

    return build


def test_ids_of_a_sentence_are_the_published_tokenizers(tokenizer):
    assert tokenizer.encode("Hello there.") == [39, 68, 75, 75, 78, 259, 81, 68, 13]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the in the thin hen", ["t", "he", "Ġ", "in", "Ġthe", "Ġt", "h", "in", "Ġ", "he", "n"]),
        ("assistant", ["assistant"]),
        ("ü", ["Ã", "¼"]),
        ("", []),
        (" \n", ["Ġ", "Ċ"]),
    ],
)
def test_merges_apply_in_order_of_rank(tokenizer, text, tokens):
    assert spelled(tokenizer, text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12", ["1", "2"]),  # digits are cut apart before anything merges
        ("1a", ["1", "a"]),
        ("x's", ["x", "'s"]),
        (".\n", [".Ċ"]),  # a line end joins the signs before it
        ("a.", ["a", "."]),  # a sign joins the word behind it, not the one before
    ],
)
def test_text_is_cut_as_qwen2_cuts_it(checkpoint_with, text, tokens):
    known = ["12", "1a", "'s", "x'", ".Ċ", "a."]
    knows_more = Tokenizer(checkpoint_with(known, [f"{pair[0]} {pair[1]}" for pair in known]))
    names = TOKENS | {300 + index: token for index, token in enumerate(known)}
    assert [names[token_id] for token_id in knows_more.encode(text)] == tokens


@pytest.mark.parametrize("typed", ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<tts_pad>", "<tts_text_eod>"])
def test_typed_control_token_is_plain_text(tokenizer, typed):
    assert "".join(spelled(tokenizer, typed)) == typed
    assert max(tokenizer.encode(f"a {typed} b")) < 268  # where the control tokens of this vocabulary begin


def test_decomposed_letters_are_composed(tokenizer):
    assert tokenizer.encode("Ko\u0308ln") == tokenizer.encode("K\u00f6ln")
    assert spelled(tokenizer, "e\u0301") == ["Ã", "©"]


@given(text=st.text())
def test_no_byte_of_a_text_is_lost(tokenizer, text):
    assert ByteLevel().decode(spelled(tokenizer, text)) == unicodedata.normalize("NFC", text)


def test_vocabulary_without_a_byte_is_refused(checkpoint_with, tmp_path):
    checkpoint = checkpoint_with()
    (tmp_path / "vocab.json").write_text(json.dumps({token: at for token, at in VOCAB.items() if token != "Ġ"}))
    with pytest.raises(CheckpointError, match=r"vocab\.json: the byte-level symbol 'Ġ' is missing"):
        Tokenizer(checkpoint)


def test_id_beyond_the_text_embedding_is_refused(checkpoint_with, tmp_path):
    checkpoint = checkpoint_with()
    (tmp_path / "vocab.json").write_text(json.dumps(VOCAB | {"zz": 512}))
    with pytest.raises(CheckpointError, match=r"vocab\.json: 'zz' is 512, outside text_vocab_size 512"):
        Tokenizer(checkpoint)


@pytest.mark.parametrize("line", ["q x", "the", "t h e"])
def test_merge_of_unknown_tokens_is_refused(checkpoint_with, line):
    with pytest.raises(CheckpointError, match=rf"merges\.txt: line 14: '{line}'"):
        Tokenizer(checkpoint_with(merges=[line]))


def test_file_that_is_no_vocabulary_is_refused(checkpoint_with, tmp_path):
    checkpoint = checkpoint_with()
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        Tokenizer(checkpoint)


def test_vocabulary_that_splits_the_role_is_refused(checkpoint_with, tmp_path):
    checkpoint = checkpoint_with()
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(CheckpointError, match="is not two tokens"):
        Tokenizer(checkpoint)
