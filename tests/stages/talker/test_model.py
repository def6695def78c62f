"""The modules bear the published names, compute what the reference does over whole sequences, and can be trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from duotone.stages.talker.decoder import Rope
from duotone.stages.talker.model import PREFIX, Talker, code_offsets
from duotone.stages.talker.prompt import build_plan
from duotone.stages.weights import shapes

from ...golden_outputs import GOLDEN, load_case

TEXT = "Hello there."


@pytest.fixture(scope="module")
def talker(custom_voice):
    return Talker.load(custom_voice, torch.device("cpu"), torch.float32)


def embedded(talker, ids):
    """Inputs [positions, hidden] of rows laid out as a PromptPlan's, through the modules' own tables one by one."""
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    inputs = talker.embed_text(torch.tensor(ids[:, 0]))
    for position, codes in enumerate(ids[:, 1:].tolist()):
        for table, code in zip(tables, codes, strict=True):
            if code >= 0:
                inputs[position] += table.weight[code]
    return inputs


def test_parameters_bear_the_published_names_and_shapes(custom_voice):
    stored = custom_voice.weights.tensors.items()
    published = {name: tensor.shape for name, tensor in stored if name.startswith(PREFIX)}
    assert shapes(Talker(custom_voice.talker), PREFIX) == published


def test_projection_is_not_asked_for_where_the_sizes_are_equal(custom_voice):
    config = custom_voice.talker
    as_wide = replace(config.code_predictor_config, hidden_size=config.hidden_size)
    same = replace(config, code_predictor_config=as_wide)
    asked = [{name for name in shapes(Talker(it), PREFIX) if "small_to_mtp" in name} for it in (config, same)]
    assert [len(names) for names in asked] == [2, 0]


def test_whole_sequences_give_the_references_codes(talker, custom_voice, tokenizer):
    """Teacher forcing: one pass over the prompt and all frames, one over all frames' codebooks."""
    codes = load_case(GOLDEN / "custom_voice" / "custom_voice_00.npz").codes
    plan = build_plan(custom_voice, tokenizer, TEXT, language="english", speaker="ada", non_streaming=True)
    pad = np.full((len(codes), 1), custom_voice.text_tokens.tts_pad_token_id)
    sequence = embedded(talker, np.concatenate((plan.row_ids(), np.concatenate((pad, codes), 1))))[None]
    hidden, logits = talker(sequence, Rope.table(custom_voice.talker, sequence.shape[1]))
    begins = slice(plan.positions - 1, plan.positions - 1 + len(codes))
    assert logits[0, begins, :64].argmax(-1).tolist() == codes[:, 0].tolist()

    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    fed = [tables[book].weight[codes[:, book]] for book in range(15)]
    inputs = torch.stack((hidden[0, begins], *fed), 1)
    later = talker.code_predictor(inputs, Rope.table(custom_voice.talker.code_predictor_config, 16))
    assert later.argmax(-1).tolist() == codes[:, 1:].tolist()


def test_code_table_holds_every_codebook_and_a_row_of_zeros(talker, custom_voice):
    table, offsets = talker.code_table(), code_offsets(custom_voice.talker)
    assert table.shape == (1088 + 15 * 64 + 1, 64)
    assert torch.equal(table[offsets[0] + 965], talker.model.codec_embedding.weight[965])
    assert torch.equal(table[offsets[9] + 5], talker.code_predictor.model.codec_embedding[8].weight[5])
    assert not table[-1].any()


def test_gradients_reach_every_parameter(custom_voice):
    torch.manual_seed(0)
    config = custom_voice.talker
    talker = Talker(config)
    text_ids, codes = torch.randint(512, (2, 6)), torch.randint(64, (2, 6, 16))
    inputs = talker.embed_text(text_ids) + F.embedding(codes + code_offsets(config), talker.code_table()).sum(2)
    hidden, logits = talker(inputs, Rope.table(config, 6))
    frames = F.embedding(codes + code_offsets(config), talker.code_table())[:, :, :15].flatten(0, 1)
    frame_inputs = torch.cat((hidden.flatten(0, 1)[:, None], frames), 1)
    later = talker.code_predictor(frame_inputs, Rope.table(config.code_predictor_config, 16))
    (logits.square().mean() + later.square().mean()).backward()
    untouched = [name for name, it in talker.named_parameters() if it.grad is None or not it.grad.any()]
    assert untouched == []
