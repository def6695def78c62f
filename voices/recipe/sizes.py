"""The voice's sizes and control ids: one place for the Talker's, the codec's and the tokenizer's."""

from duotone.stages.architecture import CodecConfig, CodePredictorConfig, TalkerConfig

SPEAKER = "lark"
CODES = 128
BOOKS = 16
FRAME_SAMPLES = 1920
SAMPLE_RATE = 24_000
TEXT_VOCAB = 4096
ADDED_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
"""The tokenizer's last ids, in this order."""
ENDOFTEXT, IM_START, IM_END, TTS_PAD, TTS_BOS, TTS_EOS = range(TEXT_VOCAB - len(ADDED_TOKENS), TEXT_VOCAB)

ENGLISH = CODES + 64
SPEAKER_ID = CODES + 80
_CONTROL = CODES + 100  # as in the published checkpoints: pad, bos and eos stand 100 to 102 above the codes

TALKER = TalkerConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    vocab_size=CODES + 1024,
    num_code_groups=BOOKS,
    text_hidden_size=64,
    text_vocab_size=TEXT_VOCAB,
    codec_pad_id=_CONTROL,
    codec_bos_id=_CONTROL + 1,
    codec_eos_token_id=_CONTROL + 2,
    codec_think_id=_CONTROL + 6,
    codec_nothink_id=_CONTROL + 7,
    codec_think_bos_id=_CONTROL + 8,
    codec_think_eos_id=_CONTROL + 9,
    codec_language_id={"english": ENGLISH},
    spk_id={SPEAKER: SPEAKER_ID},
    spk_is_dialect={SPEAKER: False},
    code_predictor_config=CodePredictorConfig(
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        vocab_size=CODES,
        num_code_groups=BOOKS,
    ),
)
CODEC = CodecConfig(
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    codebook_dim=256,
    codebook_size=CODES,
    num_quantizers=BOOKS,
    latent_dim=192,
    decoder_dim=384,
    sliding_window=16,
    upsample_rates=(8, 5, 4, 3),
    upsampling_ratios=(2, 2),
)
