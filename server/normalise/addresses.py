"""Web addresses, e-mail addresses and file names, sign by sign."""

import re

from .acronyms import spelled
from .numbers import bare_number
from .rule import Rule, rule, table, words

_SIGNS = table("""
    . = dot; / = slash; @ = at; - = dash; _ = underscore; : = colon; ? = question mark; & = and; # = hash;
    % = percent; + = plus; ~ = tilde; ! = exclamation mark; * = star; $ = dollar; ' = apostrophe; \\ = backslash
""") | {"=": "equals", ",": "comma", ";": "semicolon"}
_SPELLED = words("""
    ai api ch cn css csv de eu exe fr ftp htm html http https io jp jpg js md mp nl pdf php png py sh ts tv txt uk www
    xml
""")
"""Parts of an address that are said letter by letter."""
_PART = re.compile(r"[A-Za-z]+|\d+|[^A-Za-z\d\s]")
_DOMAIN = r"[\w-]{1,63}+(?:\.[\w-]{1,63}+){1,8}+"
_CHARACTER = r"[^\s<>\"()\[\]{}|^`]"


def _address(match: re.Match[str]) -> str:
    """`https://example.com/a-1.html` → "example dot com slash a dash one dot H T M L"."""
    return " ".join(map(_part, _PART.findall(match["address"])))


def _part(part: str) -> str:
    if part.isdecimal():
        return bare_number(part)
    if part.lower() in _SPELLED:
        return spelled(part)
    return _SIGNS.get(part, part)


ADDRESSES: tuple[Rule, ...] = (
    rule(rf"(?<![\w.+-])(?P<address>[\w.+-]{{1,64}}+@{_DOMAIN})", _address),
    rule(
        rf"(?<!\w)(?:[a-z]{{2,8}}://|(?=www\.))(?P<address>{_CHARACTER}{{1,400}}(?<![.,;:!?'*]))",
        _address,
        re.IGNORECASE,
    ),
    # example.com/path, node.js, README.md; "end.The" lacks a space, and is none
    rule(
        rf"(?<![\w.@/])(?P<address>\w[\w-]{{0,62}}+(?:\.[\w-]{{1,63}}+){{0,8}}\.[a-z][a-z\d]{{1,9}}(?![\w@])"
        rf"(?:/(?:{_CHARACTER}{{1,400}}(?<![.,;:!?'*]))?)?)",
        _address,
    ),
)
