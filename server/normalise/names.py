"""Titles, abbreviations, initials and roman numerals."""

import re
from collections.abc import Callable

from .numbers import cardinal, ordinal, roman
from .rule import SENTENCE_STARTERS, Rule, any_of, rule, stop_after, table, words

_TITLES = table("""
    Mr = Mister; Mrs = Missus; Ms = Miz; Dr = Doctor; Prof = Professor; St = Saint; Mt = Mount; Ft = Fort
""")
_DOTTED_TITLES = table("""
    Capt = Captain; Col = Colonel; Gen = General; Lt = Lieutenant; Sgt = Sergeant; Gov = Governor; Sen = Senator;
    Rep = Representative; Rev = Reverend; Pres = President; Hon = Honorable
""")
"""Both stand before a name; without a full stop these are other words."""
_WITHOUT_NAME = table("""
    Mr = Mister; Mrs = Missus; Ms = Miz; Dr = Drive; Prof = Professor; St = Street; Mt = Mountain
""")
"""What the same letters mean where no name follows."""
_BEFORE_NUMBERS = table("""
    No = number; Nos = numbers; p = page; pp = pages; Vol, vol = volume; Ch, ch = chapter; Sec, sec = section;
    Fig, fig = figure; Figs, figs = figures; Eq, eq = equation; Art = article; Apt, apt = apartment; Rte = route;
    Hwy = highway; Rm = room; Ext, ext = extension; c = circa; Tel, tel = telephone
""")
_ABBREVIATIONS = table("""
    e.g. = for example; E.g. = For example; i.e. = that is; I.e. = That is; etc. = et cetera; vs. = versus;
    cf. = compare; viz. = namely; approx. = approximately; a.k.a. = also known as; et al. = and others;
    incl. = including; ca. = circa; dept., Dept. = department; govt. = government; Inc. = Incorporated;
    Ltd. = Limited; Corp. = Corporation; Co. = Company; Bros. = Brothers; Assn. = Association; Univ. = University;
    Jr. = Junior; Sr. = Senior; Ave. = Avenue; Blvd. = Boulevard; Rd. = Road; Ln. = Lane; Pkwy. = Parkway;
    misc. = miscellaneous; max. = maximum; min. = minimum; avg. = average; a.m., A.M. = a m; p.m., P.M. = p m
""")
_UNDOTTED = table("""
    vs = versus; w/o = without; c/o = care of; and/or = and or; n/a, N/A = not applicable; aka = also known as;
    WW1, WWI = World War One; WW2, WWII = World War Two; PhD, Ph.D. = P H D
""")

_HEADINGS = any_of(
    words("""
        Act Appendix Article Book Bowl Chapter Class Episode Figure Grade Level Part Phase Psalm Scene Season Section
        Stage Step Table Title Type Unit Vol Volume War
    """)
)
_RULERS = any_of(
    words("""
        Alexander Benedict Catherine Charles Christian Clement Edward Elizabeth Ferdinand Francis Frederick George
        Gregory Henry Innocent James John Leo Leopold Louis Mary Napoleon Nicholas Otto Paul Peter Philip Pius Richard
        Urban Wilhelm William
    """)
)


def _without_name(match: re.Match[str]) -> str:
    return _WITHOUT_NAME[match["title"]] + stop_after(match)


def _initials(match: re.Match[str]) -> str:
    return " ".join(match[0].replace(".", " ").upper().split()) + stop_after(match)


def _numeral(words: Callable[[int], str]) -> Callable[[re.Match[str]], str | None]:
    """Has the numeral at the end of a find said in these words."""

    def say(match: re.Match[str]) -> str | None:
        value = roman(match["roman"])
        return match[0].removesuffix(match["roman"]) + words(value) if value else None

    return say


NAMES: tuple[Rule, ...] = (
    # A street behind a house number and before another sentence, a saint before a name, a street elsewhere.
    rule(
        r"(?<=\d )(?P<name>(?:[NSEW]\.? )?(?:[A-Z][a-z]{1,20} ){1,3})St\b\.?",
        lambda match: f"{match['name']}Street{stop_after(match)}",
    ),
    rule(rf"\bSt\.(?= (?:{SENTENCE_STARTERS})\b)", "Street."),
    rule(rf"\b(?P<title>{any_of(_TITLES)})\b\.?(?= [A-Z])", lambda match: _TITLES[match["title"]]),
    rule(rf"\b(?P<title>{any_of(_DOTTED_TITLES)})\.(?= [A-Z])", lambda match: _DOTTED_TITLES[match["title"]]),
    rule(rf"\b(?P<title>{any_of(_WITHOUT_NAME)})\.", _without_name),
    rule(rf"(?<![\w.])(?P<name>{any_of(_BEFORE_NUMBERS)})\.(?= ?#?\d)", lambda match: _BEFORE_NUMBERS[match["name"]]),
    rule(rf"(?<![\w.])(?:{any_of(_ABBREVIATIONS)})(?!\w)", lambda match: _ABBREVIATIONS[match[0]] + stop_after(match)),
    rule(rf"(?<![\w./])(?:{any_of(_UNDOTTED)})(?![\w/])", lambda match: _UNDOTTED[match[0]]),
    rule(r"(?<![\w/])w/(?= ?[A-Za-z])", "with"),
    # U.S., J. R. R. Tolkien
    rule(r"(?<![\w.])(?:[A-Za-z]\.){2,8}[A-Za-z]?(?!\w)", _initials),
    rule(rf"(?<![\w.'°])(?:[A-HJ-Z]\. ?){{1,4}}(?=(?!(?:{SENTENCE_STARTERS})\b)[A-Z][a-z])", _initials),
)

ROMAN_NUMERALS: tuple[Rule, ...] = (
    rule(r"\b(?P<roman>[IVX]{1,6})\b(?= [Cc]entur)", _numeral(ordinal)),
    rule(rf"\b(?:{_HEADINGS}) (?P<roman>[IVX]|[IVXLC]{{2,7}})\b(?!')", _numeral(cardinal)),
    rule(
        rf"\b(?:{_RULERS}) (?P<roman>[VX]|[IVX]{{2,6}}|I(?=[.,;:!?)]|$|'s| of | was ))\b",
        _numeral(lambda n: f"the {ordinal(n)}"),
    ),
    rule(rf"\b(?!(?:{SENTENCE_STARTERS})\b)[A-Z][a-z]{{1,20}} (?P<roman>[IVX]{{2,6}})\b(?!')", _numeral(cardinal)),
)
