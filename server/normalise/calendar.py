"""Dates and times of day."""

import re

from .numbers import cardinal, counted, number, ordinal, plural, year
from .rule import ENDS, STARTS, Rule, any_of, rule, stop_after, table

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SHORT_MONTHS = any_of((*(month[:3] for month in MONTHS if month != "May"), "Sept"))
_CLEARLY_MONTHS = any_of(("Jan", "Feb", "Aug", "Sept", "Oct", "Nov", "Dec"))
"""The others are expanded beside a number alone."""
_DAYS = table("""
    Mon = Monday; Tue, Tues = Tuesday; Wed = Wednesday; Thu, Thur, Thurs = Thursday; Fri = Friday; Sat = Saturday;
    Sun = Sunday
""")
_MONTH = rf"\b(?P<month>{any_of(MONTHS)}|(?:{_SHORT_MONTHS})\b\.?)"
_YEAR = r"(?P<year>\d{4})(?!\d)"
_CENTURY_BREAK = 69
"""Years of two digits: up to 68 they are of this century."""


def _date(month: int, day: int, years: str = "") -> str | None:
    """None for a day that no calendar has. `years` has two or four digits, or none."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if len(years) == 2:
        years = f"{20 if int(years) < _CENTURY_BREAK else 19}{years}"
    return f"{MONTHS[month - 1]} {ordinal(day)}" + (f", {year(int(years))}" if years else "")


def _iso_date(match: re.Match[str]) -> str | None:
    said = _date(int(match["month"]), int(match["day"]), match["year"])
    return f"{said}, " if said and match[0].endswith("T") else said


def _month_first(match: re.Match[str]) -> str | None:
    # As in the US, but for a first number that can only be a day.
    first, second, years = int(match["a"]), int(match["b"]), match["year"]
    return _date(first, second, years) or _date(second, first, years)


def _day_first(match: re.Match[str]) -> str | None:
    return _date(int(match["b"]), int(match["a"]), match["year"])


def _month_number(name: str) -> int:
    return next(at for at, month in enumerate(MONTHS, 1) if month.startswith(name[:3]))


def _month(match: re.Match[str]) -> str:
    return MONTHS[_month_number(match["month"]) - 1]


def _month_and_day(match: re.Match[str]) -> str | None:
    return _date(_month_number(match["month"]), int(match["day"]), match["year"] or "")


def _day_and_month(match: re.Match[str]) -> str | None:
    day = int(match["day"])
    if not 1 <= day <= 31:
        return None
    years = f", {year(int(match['year']))}" if match["year"] else ""
    return f"the {ordinal(day)} of {_month(match)}{years}{stop_after(match)}"


def _clock(hour: int, minute: int) -> str:
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}" if minute else cardinal(hour)


def _twelve_hours(match: re.Match[str]) -> str | None:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if hour > 23 or minute > 59:
        return None
    return f"{_clock(hour, minute)} {match['half'].lower()} m{stop_after(match)}"


def _clock_time(match: re.Match[str]) -> str | None:
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 24 or minute > 59:
        return None
    if match["second"]:
        return f"{_clock(hour, minute)} and {counted(match['second'].removeprefix('0'), 'second', 'seconds')}"
    if minute:
        return _clock(hour, minute)
    if 1 <= hour <= 12:
        return f"{cardinal(hour)} o'clock"
    return "midnight" if hour in (0, 24) else f"{cardinal(hour)} hundred"


def _decade(match: re.Match[str]) -> str:
    digits = match["digits"]
    return plural(year(int(digits)) if len(digits) == 4 else number(digits))


DATES_AND_TIMES: tuple[Rule, ...] = (
    # 2026-12-25, 2026-12-25T15:05
    rule(rf"{STARTS}{_YEAR}-(?P<month>\d\d)-(?P<day>\d\d)(?:T(?=\d\d:)|(?![\d-]))", _iso_date),
    # 12/25/2026, 25.12.2026
    rule(rf"{STARTS}(?P<a>\d\d?)/(?P<b>\d\d?)/(?P<year>\d{{4}}|\d\d)(?![\d/])", _month_first),
    rule(rf"{STARTS}(?P<a>\d\d?)\.(?P<b>\d\d?)\.(?P<year>\d{{4}})(?!\.?\d)", _day_first),
    # 12th-14th; Mon-Fri; Mon, Dec 25
    rule(r"(?<=\d(?:st|nd|rd|th)) ?[-–] ?(?=\d)", "to"),
    rule(
        rf"\b(?P<first>{any_of(_DAYS)})\.? ?[-–] ?(?P<last>{any_of(_DAYS)})\b\.?",
        lambda match: f"{_DAYS[match['first']]} to {_DAYS[match['last']]}{stop_after(match)}",
    ),
    rule(rf"\b(?P<day>{any_of(_DAYS)})\b\.?(?=,? (?:{_MONTH}|\d))", lambda match: _DAYS[match["day"]]),
    # Dec. 25th, 2026; 25 December 2026; Dec 2026
    rule(rf"{_MONTH} (?P<day>\d\d?)(?:st|nd|rd|th)?(?![\w:/%]|[.,]\d)(?:,? {_YEAR})?", _month_and_day),
    rule(rf"{STARTS}(?:[Tt]he )?(?P<day>\d\d?)(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? {_YEAR})?", _day_and_month),
    rule(rf"\b(?P<month>{_SHORT_MONTHS})\b\.?(?= \d)", _month),
    rule(rf"\b(?P<month>{_CLEARLY_MONTHS})\.", lambda match: _month(match) + stop_after(match)),
    # 9:00-17:00, 9am-5pm
    rule(r"(?<=:\d\d) ?[-–—] ?(?=\d)|(?:(?<=[\dmM])|(?<=[mM]\.)) ?[-–—] ?(?=\d\d?(?::\d\d| ?[AaPp]\.?[Mm]))", "to"),
    # 3:05pm, 10 a.m.
    rule(
        rf"{STARTS}(?P<hour>\d\d?)(?::(?P<minute>\d\d))? ?(?P<half>[AaPp])(?:\. ?[Mm]\.|\.?[Mm](?![A-Za-z]))",
        _twelve_hours,
    ),
    # 15:30, 3:00, 12:30:05
    rule(rf"{STARTS}(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>[0-5]\d(?:\.\d{{1,9}})?))?(?![\d:])", _clock_time),
    # the 1990s, the '90s
    rule(rf"(?<!\w)'?(?P<digits>\d{{1,4}})'?s{ENDS}", _decade),
    # the class of '26
    rule(r"(?<!\w)'(?=\d\d\b)", ""),
)
