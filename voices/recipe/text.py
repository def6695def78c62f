"""Training text: sentences out of Debian packages and generated ones, cleaned, mixed and cut to a fixed count.

    python -m recipe.text --root UNPACKED --out sentences.txt.gz --count 160000

`UNPACKED` holds the unpacked packages `wordnet-base`, `fortunes`, `fortunes-min`, `bible-kjv`, `bible-kjv-text`,
`dict-gcide`, `dict-jargon`
(`apt-get download …; dpkg -x FILE UNPACKED`). One utterance a line, plain ASCII, no digits.
"""

import argparse
import gzip
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .everyday import everyday_sentence

_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ,.;:!?'\"-]*[.!?\"]|[A-Za-z' -]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
_ODD = re.compile(
    r"[A-Z]{2}|[a-z][A-Z]|\b[b-hj-zB-HJ-Z]\b(?!['.])|\b[A-Za-z]\.[A-Za-z]|--|\.\.|(\w)\1\1|\b(?:etc|cf|viz|i\.e|e\.g|esp|pl|obs)\b"
)
MAX_WORDS = 34
MAX_CHARS = 250
SHARES = {
    "everyday": 0.2,
    "example": 0.2,
    "gloss": 0.15,
    "fortune": 0.05,
    "bible": 0.04,
    "gcide": 0.08,
    "jargon": 0.03,
    "word": 0.25,
}


def clean(text: str) -> str | None:
    """A sentence fit for training, or None: ASCII letters and plain punctuation, one to `MAX_WORDS` words, ends with a
    mark.
    """
    text = text.replace("’", "'").replace("‘", "'").replace("“", '"').replace("”", '"').replace("`", "'")
    text = re.sub(r"\s+", " ", text).strip(" -;:,")
    if not text or text.count('"') % 2 or _ODD.search(text):
        return None
    if text[-1] not in '.!?"':
        text += "."
    text = text[0].upper() + text[1:]
    words = text.split()
    if not _ALLOWED.fullmatch(text) or not 1 <= len(words) <= MAX_WORDS or max(map(len, words)) > 18:
        return None
    return text


def wordnet(root: Path) -> tuple[list[str], list[str]]:
    """(definitions, example sentences) of WordNet 3.0."""
    glosses: list[str] = []
    examples: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (root / f"usr/share/wordnet/data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            gloss = line.partition("|")[2]
            examples += re.findall(r'"([^"]+)"', gloss)
            definition = re.sub(r"\([^)]*\)", "", gloss.split('"')[0]).strip(" ;")
            lemma = line.split()[4].replace("_", " ")
            glosses.append(definition)
            if (
                part == "noun"
                and lemma.islower()
                and not definition.startswith(("the ", "of "))
                and len(definition) < 90
            ):
                glosses.append(f"{'An' if lemma[0] in 'aeiou' else 'A'} {lemma} is {definition}")
    return glosses, examples


def vocabulary(sentences: Iterable[str]) -> list[str]:
    """The words of `sentences` that are no names, most frequent first."""
    counts = Counter(word for sentence in sentences for word in re.findall(r"(?<![\w'-])[a-z]{2,}(?![\w'-])", sentence))
    return [word for word, _ in counts.most_common()]


def fortunes(root: Path) -> Iterator[str]:
    """Sentences of the fortune files, without attributions."""
    for path in sorted((root / "usr/share/games/fortunes").iterdir()):
        if path.suffix or not path.is_file():
            continue
        for quote in path.read_text(encoding="utf-8", errors="ignore").split("\n%"):
            body = re.split(r"\n\s*--", quote)[0]
            if body.count("\n") > 12 or re.search(r"\n\s{6,}", body):
                continue
            yield from _SENTENCE_END.split(re.sub(r"\s+", " ", body.strip("% \n")))


def bible(root: Path) -> Iterator[str]:
    """Verses, cut at their colons and full stops."""
    command = [str(root / "usr/bin/bible"), "-p", str(root / "usr/lib"), "-f", "gen1:1-rev22:21"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        verse = re.sub(r"^\S+\s", "", line.strip())
        yield from re.split(r"(?<=[.:;])\s+", verse)


def dictionary(path: Path) -> Iterator[str]:
    """Sentences out of a dictd dictionary's entries; source notes and cross references are dropped."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore")
    text = re.sub(r"\[[^\]]*\]|\{|\}|<[^>]*>|\([^)]*\)", "", text)
    for block in re.split(r"\n\s*\n", text):
        body = re.sub(r"\s+", " ", block).strip()
        body = re.sub(r"^(?:\w\. |\d+\. |\([a-z]\) )+", "", body)
        if "\\" in body or body.startswith(("Syn", "Note", "See", "--")):
            continue
        for sentence in _SENTENCE_END.split(re.split(r"\s--", body)[0]):
            if len(sentence.split()) > 3:
                yield sentence


def word_utterance(words: list[str], rng: random.Random) -> str:
    """A word or a few on their own; frequent words are drawn more often."""

    def draw() -> str:
        return words[min(len(words) - 1, int(len(words) * rng.random() ** 2))]

    kind = rng.random()
    if kind < 0.1:
        return draw().capitalize() + "."
    if kind < 0.2:
        return f"The word is {draw()}."
    if kind < 0.25:
        return f"What does {draw()} mean?"
    listed = [draw() for _ in range(rng.randint(2, 9))]
    return (", ".join(listed[:-1]) + rng.choice((", ", ", and ")) + listed[-1] + ".").capitalize()


def carelessly(text: str, rng: random.Random) -> str:
    """As many type, and as pieces of a long sentence are: at times without its last mark or its first capital."""
    if rng.random() < 0.2:
        text = text.rstrip(".!?")
    return text[0].lower() + text[1:] if rng.random() < 0.15 else text


def mixture(root: Path, count: int, seed: int) -> list[str]:
    """`count` utterances in the shares above, shuffled; every fifth or so is two to five sentences together."""
    rng = random.Random(seed)
    glosses, examples = wordnet(root)
    found = {
        "example": examples,
        "gloss": glosses,
        "fortune": fortunes(root),
        "bible": bible(root),
        "gcide": dictionary(root / "usr/share/dictd/gcide.dict.dz"),
        "jargon": dictionary(root / "usr/share/dictd/jargon.dict.dz"),
    }
    pools = {name: list(dict.fromkeys(filter(None, map(clean, sentences)))) for name, sentences in found.items()}
    words = vocabulary(sentence for pool in pools.values() for sentence in pool)
    pools["everyday"] = list(dict.fromkeys(everyday_sentence(rng) for _ in range(count)))
    pools["word"] = list(dict.fromkeys(word_utterance(words, rng) for _ in range(count // 2)))
    chosen: list[str] = []
    for name, pool in pools.items():
        rng.shuffle(pool)
        chosen += pool[: int(count * SHARES[name] * 1.25)]
        print(f"{name}: {len(pool)} sentences")
    rng.shuffle(chosen)
    out: list[str] = []
    position = 0
    while position < len(chosen) and len(out) < count:
        together = rng.choice((2, 2, 3, 4, 5)) if rng.random() < 0.2 else 1
        utterance = " ".join(chosen[position : position + together])
        out.append(carelessly(utterance if len(utterance) <= MAX_CHARS else chosen[position], rng))
        position += together
    return out


def read_sentences(file: Path) -> list[str]:
    """The utterances that `main` wrote."""
    with gzip.open(file, "rt", encoding="ascii") as lines:
        return lines.read().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=160_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sentences = mixture(args.root, args.count, args.seed)
    with gzip.open(args.out, "wt", encoding="ascii") as out:
        out.write("\n".join(sentences) + "\n")
    print(f"{len(sentences)} utterances, {sum(len(s.split()) for s in sentences)} words")


if __name__ == "__main__":
    main()
