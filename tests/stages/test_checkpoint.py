"""A checkpoint's configuration is checked before anything starts; what is wrong is told with file and key."""

import json
import shutil

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from duotone.stages.checkpoint import locate, read_checkpoint
from duotone.stages.errors import CheckpointError

from ..golden_outputs import CUSTOM_VOICE, VOICE_DESIGN

CODEC = "speech_tokenizer/config.json"


@pytest.fixture
def directory(tmp_path):
    """A copy of a golden checkpoint, to be broken."""
    return shutil.copytree(CUSTOM_VOICE, tmp_path / "checkpoint")


def edit(file, path, value):
    """Set the key at a dotted path of a JSON file; `...` removes it."""
    content = json.loads(file.read_text())
    *sections, key = path.split(".")
    at = content
    for section in sections:
        at = at[section]
    if value is ...:
        del at[key]
    else:
        at[key] = value
    file.write_text(json.dumps(content))


def refused(directory, *parts):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(directory)
    for part in parts:
        assert part in str(caught.value)


def test_configuration_is_read_as_it_stands_in_the_files():
    checkpoint = read_checkpoint(CUSTOM_VOICE)
    assert (checkpoint.model_type, checkpoint.kind, checkpoint.size) == ("qwen3_tts", "custom_voice", "tiny")
    talker, predictor, codec = checkpoint.talker, checkpoint.talker.code_predictor_config, checkpoint.codec
    assert (talker.hidden_size, talker.num_hidden_layers, talker.vocab_size, talker.text_vocab_size) == (
        64,
        3,
        1088,
        512,
    )
    assert (talker.codec_bos_id, talker.codec_eos_token_id, talker.codec_pad_id) == (165, 166, 164)
    assert (talker.codec_think_id, talker.codec_nothink_id) == (170, 171)
    assert (talker.codec_think_bos_id, talker.codec_think_eos_id) == (172, 173)
    assert talker.spk_id == {"ada": 964, "grace": 965, "linus": 966}
    assert talker.spk_is_dialect == {"ada": False, "grace": False, "linus": "sichuan_dialect"}
    assert talker.codec_language_id["english"] == 66
    assert (predictor.hidden_size, predictor.head_dim, predictor.vocab_size, predictor.rope_theta) == (32, 8, 64, 1e6)
    assert (codec.decoder_dim, codec.sliding_window, codec.upsample_rates) == (64, 9, (8, 5, 4, 3))
    tokens = checkpoint.text_tokens
    assert (tokens.im_start_token_id, tokens.im_end_token_id) == (270, 268)
    assert (tokens.tts_pad_token_id, tokens.tts_bos_token_id, tokens.tts_eos_token_id) == (271, 272, 273)


@pytest.mark.parametrize(("directory", "kind"), [(CUSTOM_VOICE, "custom_voice"), (VOICE_DESIGN, "voice_design")])
def test_kind(directory, kind):
    assert read_checkpoint(directory).kind == kind


def test_sampling_defaults_come_from_the_file_and_else_from_the_published_models(directory):
    file = directory / "generation_config.json"
    file.write_text(json.dumps({"temperature": 0.7, "top_k": 20, "subtalker_top_p": 0.8, "max_new_tokens": 99}))
    sampling = read_checkpoint(directory).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty) == (0.7, 20, 1.0, 1.05)
    assert (sampling.subtalker_temperature, sampling.subtalker_top_k, sampling.subtalker_top_p) == (0.9, 50, 0.8)
    assert sampling.max_new_frames == 99


@pytest.mark.parametrize(
    ("do_sample", "subtalker_dosample", "temperatures"),
    [(False, True, (0.0, 0.9)), (True, False, (0.9, 0.0)), (False, False, (0.0, 0.0))],
)
def test_not_sampling_is_temperature_zero(directory, do_sample, subtalker_dosample, temperatures):
    edit(directory / "generation_config.json", "do_sample", do_sample)
    edit(directory / "generation_config.json", "subtalker_dosample", subtalker_dosample)
    sampling = read_checkpoint(directory).sampling
    assert (sampling.temperature, sampling.subtalker_temperature) == temperatures


@pytest.mark.parametrize(
    ("kind", "size", "takes"),
    [
        ("voice_design", "1b7", True),
        ("voice_design", "tiny", True),
        ("custom_voice", "1b7", True),
        ("custom_voice", "0b6", False),
        ("custom_voice", "8m", False),
    ],
)
def test_instructions_are_for_models_that_heed_them(directory, kind, size, takes):
    edit(directory / "config.json", "tts_model_type", kind)
    edit(directory / "config.json", "tts_model_size", size)
    assert read_checkpoint(directory).takes_instructions == takes


def test_voices_may_be_left_out(directory):
    edit(directory / "config.json", "talker_config.spk_id", ...)
    edit(directory / "config.json", "talker_config.spk_is_dialect", ...)
    assert read_checkpoint(directory).talker.spk_id == {}


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "vocab.json",
        "merges.txt",
        "tokenizer_config.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
    ],
)
def test_missing_file(directory, name):
    (directory / name).unlink()
    refused(directory, str((directory / name).parent), name.rpartition("/")[2])


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", CODEC])
def test_file_that_is_no_json(directory, name):
    (directory / name).write_text("{")
    refused(directory, str(directory / name))


@pytest.mark.parametrize(
    ("name", "path", "value", "told"),
    [
        ("config.json", "model_type", "qwen3_omni", "model_type is 'qwen3_omni'"),
        ("config.json", "model_type", ..., "`model_type`"),
        (CODEC, "model_type", "mimi", "value 'mimi' - at `$.model_type`"),
        ("config.json", "tts_model_type", "singing", "$.tts_model_type"),
        ("config.json", "tts_model_size", ..., "`tts_model_size`"),
        ("config.json", "tokenizer_type", "qwen3_tts_tokenizer_25hz", "$.tokenizer_type"),
        ("config.json", "im_start_token_id", ..., "`im_start_token_id`"),
        ("config.json", "tts_pad_token_id", 512, "tts_pad_token_id is 512, not in 0 … 511"),
        ("config.json", "talker_config", ..., "`talker_config`"),
        ("config.json", "talker_config.hidden_size", "64", "$.talker_config.hidden_size"),
        ("config.json", "talker_config.codec_eos_token_id", ..., "`codec_eos_token_id`"),
        ("config.json", "talker_config.codec_eos_token_id", 1088, "codec_eos_token_id is 1088, not in 0 … 1087"),
        ("config.json", "talker_config.codec_eos_token_id", 63, "codec_eos_token_id is 63, which is one of 64 codes"),
        ("config.json", "talker_config.codec_language_id.german", -1, "codec_language_id.german is -1"),
        ("config.json", "talker_config.spk_id.ada", 5000, "spk_id.ada is 5000"),
        ("config.json", "talker_config.spk_is_dialect.ada", "kansai", "spk_is_dialect.ada is 'kansai'"),
        ("config.json", "talker_config.num_code_groups", 8, "value 8 - at `$.talker_config.num_code_groups`"),
        ("config.json", "talker_config.vocab_size", 2048, "vocab_size leaves 1024 codes, a codebook has 64"),
        ("config.json", "talker_config.attention_bias", True, "attention_bias"),
        ("config.json", "talker_config.hidden_act", "gelu", "value 'gelu' - at `$.talker_config.hidden_act`"),
        ("config.json", "talker_config.use_sliding_window", True, "use_sliding_window"),
        ("config.json", "talker_config.rope_scaling", {"rope_type": "yarn"}, "$.talker_config.rope_scaling.rope_type"),
        ("config.json", "talker_config.code_predictor_config.head_dim", ..., "`head_dim`"),
        ("config.json", "talker_config.code_predictor_config.hidden_act", "relu", "code_predictor_config.hidden_act"),
        ("config.json", "talker_config.code_predictor_config.num_code_groups", 32, "num_code_groups"),
        (CODEC, "decoder_config", ..., "`decoder_config`"),
        (CODEC, "decoder_config.sliding_window", ..., "`sliding_window`"),
        (CODEC, "decoder_config.sliding_window", 1, "$.decoder_config.sliding_window"),
        (CODEC, "decoder_config.num_quantizers", 8, "$.decoder_config.num_quantizers"),
        (CODEC, "decoder_config.codebook_size", 128, "codebook_size is 128, not 64"),
        (CODEC, "decoder_config.upsample_rates", [8, 5, 4, 2], "is 1280, not 1920"),
        (CODEC, "decoder_config.hidden_act", "gelu", "value 'gelu' - at `$.decoder_config.hidden_act`"),
        (CODEC, "output_sample_rate", 16_000, "value 16000 - at `$.output_sample_rate`"),
        (CODEC, "decode_upsample_rate", 960, "value 960 - at `$.decode_upsample_rate`"),
        ("generation_config.json", "temperature", -1.0, "$.temperature"),
        ("generation_config.json", "top_p", 1.5, "$.top_p"),
        ("generation_config.json", "subtalker_top_k", "all", "$.subtalker_top_k"),
        ("generation_config.json", "max_new_tokens", 0, "$.max_new_tokens"),
    ],
)
def test_wrong_key(directory, name, path, value, told):
    edit(directory / name, path, value)
    refused(directory, str(directory / name), told)


def test_locate_finds_a_local_directory(tmp_path):
    assert locate(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_locate_takes_a_path_for_a_path(model):
    with pytest.raises(CheckpointError, match="no such directory"):
        locate(model)


def test_locate_downloads_a_hub_name_without_foreign_files(tmp_path, monkeypatch):
    asked = {}

    def download(name, allow_patterns):
        asked[name] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate("somebody/something") == tmp_path
    assert asked == {"somebody/something": ["*.json", "*.txt", "*.safetensors"]}


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("offline"), ValueError("Repo id must use …")])
def test_locate_says_what_was_tried(monkeypatch, error):
    def download(name, allow_patterns):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"somebody/something: no such local directory.*hub name") as caught:
        locate("somebody/something")
    assert str(error) in str(caught.value)
