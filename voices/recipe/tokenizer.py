"""The voice's tokenizer: byte-level BPE with Qwen2's split pattern, trained on the training text.

python -m recipe.tokenizer --sentences sentences.txt.gz --out CHECKPOINT
"""

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .sizes import ADDED_TOKENS, TEXT_VOCAB
from .text import read_sentences

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ROLE_WORDS = ("assistant", "user", "system")
"""Words of the chat template: the format counts on one token for each."""


def _with_pipeline(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(sentences: list[str]) -> Tokenizer:
    """A BPE of `TEXT_VOCAB` ids, the added tokens included, the role words one token each."""
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB - len(ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = _with_pipeline(Tokenizer(models.BPE()))
    weight = len(sentences) // 20
    tokenizer.train_from_iterator([*sentences, *(word for word in ROLE_WORDS for _ in range(weight))], trainer)
    return tokenizer


def write(tokenizer: Tokenizer, out: Path) -> None:
    """`vocab.json`, `merges.txt` and `tokenizer_config.json`, as the published checkpoints have them."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(out))
    first = TEXT_VOCAB - len(ADDED_TOKENS)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "added_tokens_decoder": {str(first + i): {"content": token, **flags} for i, token in enumerate(ADDED_TOKENS)},
        "additional_special_tokens": list(ADDED_TOKENS[1:]),
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def read(checkpoint: Path, dropout: float | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint; with `dropout`, merges are skipped at random (another cut of the same text each
    time).
    """
    model = models.BPE.from_file(str(checkpoint / "vocab.json"), str(checkpoint / "merges.txt"), dropout=dropout)
    tokenizer = _with_pipeline(Tokenizer(model))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED_TOKENS])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write(train(read_sentences(args.sentences)), args.out)
    tokenizer = read(args.out)
    assert tokenizer.get_vocab_size() == TEXT_VOCAB, tokenizer.get_vocab_size()
    print(
        tokenizer.encode(
            "<|im_start|>assistant\nThe birch canoe slid on the smooth planks.<|im_end|>\n<|im_start|>assistant\n"
        ).tokens
    )
    for word in ROLE_WORDS:
        assert len(tokenizer.encode(word).ids) == 1, word


if __name__ == "__main__":
    main()
