"""Puts the trained parts together as a checkpoint in the published format, bf16.

    python -m recipe.export --run DIR --tokenizer DIR --out lark

`--run` holds `talker.safetensors` and `decoder.safetensors`.
"""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from duotone.stages.code2wav.decoder import PREFIX as CODEC_PREFIX
from duotone.stages.code2wav.decoder import CodecDecoder
from duotone.stages.talker.model import PREFIX as TALKER_PREFIX
from duotone.stages.talker.model import Talker
from duotone.stages.weights import shapes

from . import sizes
from .sizes import BOOKS, CODEC, SPEAKER, TALKER

SAMPLING = {
    "do_sample": True,
    "temperature": 0.1,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "max_new_tokens": 2048,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.1,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
}


def write_weights(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], file: Path) -> None:
    """bf16, after checking that names and shapes are exactly the published ones."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != shapes:
        raise ValueError(f"{file}: not as published: {sorted(set(found.items()) ^ set(shapes.items()))[:8]}")
    save_file(
        {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"}
    )


def write_configs(out: Path, sampling: dict[str, float]) -> None:
    """The configuration files of both parts."""
    rope = {"interleaved": True, "mrope_section": [16, 8, 8], "rope_type": "default"}
    common = {"attention_bias": False, "attention_dropout": 0, "hidden_act": "silu"}
    talker = {
        **asdict(TALKER),
        **common,
        "max_position_embeddings": 8192,
        "model_type": "qwen3_tts_talker",
        "rope_scaling": rope,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }
    talker["code_predictor_config"] |= {
        **common,
        "max_position_embeddings": 64,
        "model_type": "qwen3_tts_talker_code_predictor",
        "rope_scaling": None,
        "use_sliding_window": False,
    }
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "dtype": "bfloat16",
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "tts_model_size": "8m",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "im_start_token_id": sizes.IM_START,
        "im_end_token_id": sizes.IM_END,
        "tts_pad_token_id": sizes.TTS_PAD,
        "tts_bos_token_id": sizes.TTS_BOS,
        "tts_eos_token_id": sizes.TTS_EOS,
        "speaker_encoder_config": {"enc_dim": TALKER.hidden_size, "sample_rate": sizes.SAMPLE_RATE},
        "talker_config": talker,
    }
    decoder = {
        **asdict(CODEC),
        **common,
        "attention_dropout": 0.0,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
    }
    codec = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "dtype": "bfloat16",
        "input_sample_rate": sizes.SAMPLE_RATE,
        "output_sample_rate": sizes.SAMPLE_RATE,
        "encode_downsample_rate": sizes.FRAME_SAMPLES,
        "decode_upsample_rate": sizes.FRAME_SAMPLES,
        "encoder_valid_num_quantizers": BOOKS,
        "decoder_config": decoder,
    }
    preprocessor = {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "sampling_rate": sizes.SAMPLE_RATE,
        "feature_size": 1,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    for path, content in (
        ("config.json", config),
        ("generation_config.json", sampling),
        ("speech_tokenizer/config.json", codec),
        ("speech_tokenizer/preprocessor_config.json", preprocessor),
    ):
        (out / path).write_text(json.dumps(content, indent=1) + "\n")


def export(run: Path, tokenizer: Path, out: Path, sampling: dict[str, float]) -> None:
    """Write the whole checkpoint directory."""
    (out / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    talker, codec = shapes(Talker(TALKER), TALKER_PREFIX), shapes(CodecDecoder(CODEC), CODEC_PREFIX)
    write_weights(load_file(run / "talker.safetensors"), talker, out / "model.safetensors")
    write_weights(load_file(run / "decoder.safetensors"), codec, out / "speech_tokenizer/model.safetensors")
    write_configs(out, sampling)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--temperature", type=float, default=SAMPLING["temperature"])
    parser.add_argument("--subtalker-temperature", type=float, default=SAMPLING["subtalker_temperature"])
    args = parser.parse_args()
    export(
        args.run,
        args.tokenizer,
        args.out,
        {**SAMPLING, "temperature": args.temperature, "subtalker_temperature": args.subtalker_temperature},
    )
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"{args.out} {SPEAKER}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
