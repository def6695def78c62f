"""Signs: those that are said, those that are a pause, and characters that are another way to write plain ones."""

import re
import unicodedata
from functools import lru_cache

from .acronyms import spelled
from .numbers import number
from .rule import Rule, rule, table

_PLAIN = {
    **dict.fromkeys("‘’‚‛′ʼ`´", "'"),
    **dict.fromkeys("“”„‟«»″", '"'),
    **dict.fromkeys("‐‑−﹣－", "-"),
    **dict.fromkeys("™®", ""),
    **table("""
        ß = ss; ẞ = SS; æ = ae; Æ = AE; œ = oe; Œ = OE; ø = o; Ø = O; đ, ð = d; Đ, Ð = D; þ = th; Þ = Th; ł = l;
        Ł = L; ı = i; ⁄, ∕ = /; № = No.
    """),
}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|`")
_JOINING_DASH = re.compile(r"(?<=[^\W\d_])–(?=[^\W\d_])")
_ACCENTS = re.compile(r"(?<=[A-Za-z])[\u0300-\u036f]+")
_AMOUNT_BEHIND = r"(?= ?-?[$£€¥₹]?\.?\d)"
_POWER_DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def folded(text: str) -> str:
    """Text in plain characters where there are any: quotes, digits of other scripts, fractions, accents."""
    return _ACCENTS.sub("", _NOT_ASCII.sub(lambda match: _folded(match[0]), _JOINING_DASH.sub("-", text)))


@lru_cache(maxsize=4096)
def _folded(sign: str) -> str:
    """One character. Powers and letters of other scripts stay; `½` → ` 1/2`."""
    if sign in _PLAIN or sign in _POWER_DIGITS:
        return _PLAIN.get(sign, sign)
    kind = unicodedata.category(sign)
    if kind == "Nd":
        return str(unicodedata.decimal(sign))
    compatible = unicodedata.normalize("NFKC", sign).replace("⁄", "/")
    if kind in ("No", "Nl"):
        return f" {compatible if kind == 'No' and compatible.isascii() else _numeric(sign)} "
    if kind.startswith("L"):
        letter = unicodedata.normalize("NFKD", sign)[0]
        return letter if letter.isascii() and len(compatible) == 1 else compatible
    return compatible if kind.startswith(("P", "S")) and compatible.isprintable() else sign


def _numeric(sign: str) -> str:
    value = unicodedata.numeric(sign)
    return f"{value:.0f}" if value == int(value) else f"{value}"


def _power(match: re.Match[str]) -> str:
    digits = "".join(str(_POWER_DIGITS.index(sign)) for sign in match[0])
    return {"2": "squared", "3": "cubed"}.get(digits, f"to the power of {number(digits)}")


def _greek(match: re.Match[str]) -> str:
    return unicodedata.name(match[0]).rpartition(" ")[2].lower()


COMPARISONS: tuple[Rule, ...] = (
    rule(rf"<{_AMOUNT_BEHIND}", "less than "),
    rule(rf">{_AMOUNT_BEHIND}", "greater than "),
    rule(rf"~{_AMOUNT_BEHIND}", "about "),
)
"""Signs that are known by the amount behind them, while it still has its digits."""

SIGNS: tuple[Rule, ...] = (
    rule(rf"(?<=[A-Za-z\d)])[{_POWER_DIGITS}]{{1,15}}", _power),
    rule(rf"[{_POWER_DIGITS}]", lambda match: number(str(_POWER_DIGITS.index(match[0])))),
    rule(r"(?<![^\W\d_])[α-ωΑ-Ω](?![^\W\d_])", _greek),
    # AT&T, C++, C#, A+, 18+
    rule(
        r"\b(?P<first>[A-Z]{1,4})&(?P<second>[A-Z]{1,4})\b",
        lambda match: f"{spelled(match['first'])} and {spelled(match['second'])}",
    ),
    rule(r"(?<=\b[A-Za-z])\+\+", " plus plus"),
    rule(r"(?<=\b[A-G])#(?!\w)", " sharp"),
    rule(r"(?<=\w)\+(?!\w)", " plus"),
    *(
        rule(pattern, f" {words} ")
        for pattern, words in (
            (r"#(?=\d)", "number"),
            (r"#(?=[A-Za-z])", "hashtag"),
            (r"(?:&amp;|&)", "and"),
            ("@", "at"),
            ("<=|≤", "less than or equal to"),
            (">=|≥", "greater than or equal to"),
            ("!=|≠", "is not equal to"),
            ("≈", "is about"),
            ("->|=>|→|⇒", "to"),
            ("={1,3}", "equals"),
            (r"(?<=\d) ?\* ?(?=\d)|×", "times"),
            ("÷", "divided by"),
            ("±", "plus or minus"),
            (r"\+", "plus"),
            # 5 - 3, x - 3
            (r"(?<=[\d)]) - (?=[\d(]|[b-hj-z]\b)|(?<=\b[b-hj-z]) - (?=\d)", "minus"),
            (r"(?<![\w)])-(?=[a-z]\b)", "minus"),
            (r"\^(?=[\w(-])", "to the power of"),
            ("√", "square root of"),
            ("∞", "infinity"),
            ("°", "degrees"),
            ("%", "percent"),
            ("‰", "per thousand"),
            (r"\$", "dollars"),
            ("£", "pounds"),
            ("€", "euros"),
            ("¥", "yen"),
            ("¢", "cents"),
            ("§", "section"),
            ("©", "copyright"),
            (r"(?<=\w) ?/ ?(?=\w)", "slash"),
            (r"\\(?=\w)", "backslash"),
            # 16:9
            (r"(?<=\d):(?=\d)", "to"),
        )
    ),
    rule(r":(?=\d)", ": "),
    # Silent: what is left of mathematics, markup and lists.
    rule(r"[*_|~^<>=\\•·▪#/]+", " "),
    # Pauses: dashes between words, dots that trail off.
    rule(r"(?<=[^\s,;:.!?–—-]) ?(?:-{2,}|[–—]| -(?= ))[ –—-]*", ", "),
    rule(r"-{2,}|[–—]+", " "),
    rule(r"(?<!\.)\.{2,}+(?= [a-z])", ","),
    rule(r"\.{2,}", "."),
)
