"""Money, measures, percentages, fractions, ranges, telephone numbers, versions and numbers alone."""

import re

from .calendar import MONTHS
from .numbers import bare_number, cardinal, counted, digit_groups, digits, number, ordinal
from .rule import ENDS, NUMBER, STARTS, Rule, any_of, rule, table

_CURRENCIES = table("""
    $ = dollar/dollars/cent/cents; £, GBP = pound/pounds/penny/pence; €, EUR = euro/euros/cent/cents;
    US$, USD = U S dollar/U S dollars/cent/cents; C$, CA$, CAD = Canadian dollar/Canadian dollars/cent/cents;
    A$, AU$, AUD = Australian dollar/Australian dollars/cent/cents; CHF = Swiss franc/Swiss francs/centime/centimes;
    ¥, JPY = yen/yen/sen/sen; CNY, RMB = yuan/yuan/fen/fen; ₩, KRW = won/won/jeon/jeon;
    ₹, INR = rupee/rupees/paisa/paise; ₽, RUB = ruble/rubles/kopek/kopeks
""")
"""Sign or code → one and several; one and several of its hundredth part."""
_SCALES = table("""
    k, K, thousand = thousand; m, M, mn, million = million; b, B, bn, billion = billion; t, T, tn, trillion = trillion;
    hundred = hundred
""")
_SCALE = rf"(?:(?:[ -]?(?P<word>hundred|thousand|million|billion|trillion|mn|bn|tn)|(?P<letter>[kKmMbBtT])){ENDS})?"
_PER = r"(?:/(?P<per>[A-Za-z]{1,8})(?P<per_power>[²³])?(?![\w/]))?"
"""`/h`, `/month`, `/m²`."""

_PREFIXES = table("""
    k, K = kilo; M = mega; G = giga; T = tera; P = peta; h = hecto; d = deci; c = centi; m = milli; μ = micro; n = nano
""")
_PREFIXED_UNITS = table("""
    kmcdμn m = meter; kmμ g = gram; mcd L, mcd l = liter; mμn s = second; kMGTm W = watt; kMGT Wh = watt hour;
    m Ah = amp hour; km V = volt; kMGT Hz = hertz/hertz; kM J = joule; kMh Pa = pascal; k cal = calorie;
    kKMGTP B = byte; kKMGT b, kKMGT bit = bit; kKMGT bps = bit per second/bits per second
""")
"""The prefixes that a unit has."""
_UNITS = {
    prefix + unit.split()[1]: "/".join(_PREFIXES[prefix] + name for name in said.split("/"))
    for unit, said in _PREFIXED_UNITS.items()
    for prefix in unit.split()[0]
}
_UNITS |= {unit.split()[1]: said for unit, said in _PREFIXED_UNITS.items() if said not in ("byte", "bit")}
_UNITS |= table("""
    ft = foot/feet; yd, yds = yard; mi = mile; lb, lbs = pound; oz = ounce; gal = gallon;
    tbsp = tablespoon; tsp = teaspoon; ha = hectare; sec, secs = second; min, mins = minute; h, hr, hrs = hour;
    wk, wks = week; mo, mos = month; yr, yrs = year; mph = mile per hour/miles per hour;
    mpg = mile per gallon/miles per gallon; kph, kmh = kilometer per hour/kilometers per hour;
    rpm = revolution per minute/revolutions per minute; fps = frame per second/frames per second;
    ppm = part per million/parts per million; psi = P S I/P S I; hp = horsepower/horsepower; dB = decibel; Ω = ohm;
    °C, ° C = degree Celsius/degrees Celsius; °F, ° F = degree Fahrenheit/degrees Fahrenheit; ° = degree;
    % = percent/percent; ‰ = per thousand/per thousand; ¢ = cent
""")
"""Unit → one, and several if that takes more than an s."""
_UNIT_NAME = rf"(?:{any_of(_UNITS)})"
_UNIT = rf"(?P<unit>{_UNIT_NAME})(?P<power>[²³]|(?<=[a-z])[23]{ENDS})?"
_POWERS = {"²": "square ", "2": "square ", "³": "cubic ", "3": "cubic "}

_NO_FRACTIONS = table("24/7 = twenty four seven; 9/11 = nine eleven; 50/50 = fifty fifty; 20/20 = twenty twenty")
_DENOMINATORS = {2: "half", 4: "quarter"} | {n: ordinal(n) for n in (3, *range(5, 11), 12, 16, 32, 64, 100, 1000)}


def _per(match: re.Match[str]) -> str:
    if not match["per"]:
        return ""
    unit = _UNITS.get(match["per"], match["per"]).split("/")[0]
    return f" per {unit}" + {"²": " squared", "³": " cubed", None: ""}[match["per_power"]]


def _money(match: re.Match[str]) -> str:
    """`$3.50`, `£2m`, `€1,200.50/month`, `20 EUR`."""
    amount, scale = match["amount"], match["word"] or match["letter"]
    one, many, cent, cents = _CURRENCIES[match["currency"]].split("/")
    whole, _, fraction = amount.partition(".")
    if scale:
        said = f"{number(amount)} {_SCALES[scale]} {many}"
    elif len(fraction) != 2:
        said = counted(amount, one, many)
    elif fraction == "00":
        said = counted(whole, one, many)
    else:
        parts = [] if whole == "0" else [counted(whole, one, many)]
        said = " and ".join([*parts, counted(fraction.removeprefix("0"), cent, cents)])
    return said + _per(match)


def _measure(match: re.Match[str]) -> str:
    """`5km`, `-20 °C`, `12 m²`, `50%`, `5 MB/s`."""
    one, _, many = _UNITS[match["unit"]].partition("/")
    power = _POWERS[match["power"]] if match["power"] else ""
    return counted(match["amount"], power + one, power + (many or one + "s")) + _per(match)


def _hours_and_minutes(match: re.Match[str]) -> str:
    bigger, smaller = ("hour", "minute") if match["unit"] == "h" else ("minute", "second")
    return (
        f"{counted(match['a'], bigger, bigger + 's')} {counted(match['b'].removeprefix('0'), smaller, smaller + 's')}"
    )


def _money_range(match: re.Match[str]) -> str:
    """`$10-20` → `10 to $20`, left for the rules behind; `$1.50-$2` keeps both signs."""
    sign, first = match["sign"], match["first"]
    return f"{sign if '.' in first else ''}{first} to {sign}"


def _range(match: re.Match[str]) -> str:
    """`3-5` → `3 to 5`, but `50-50` → `50 50` and `5-3 = 2` → `5 minus 3 = 2`."""
    first, second = match["first"], match["second"]
    between = " " if first == second else " minus " if match["sum"] is not None else " to "
    return first + between + second


def _fraction(match: re.Match[str]) -> str:
    """`3/4`, `1 1/2`, `24/7`; `12/25` is a day of the year where it is no common fraction."""
    whole, above, below = match["whole"], int(match["above"]), int(match["below"])
    if not whole and match["fraction"] in _NO_FRACTIONS:
        return _NO_FRACTIONS[match["fraction"]]
    if below in _DENOMINATORS and above != below and above > 0:
        name = _DENOMINATORS[below]
        several = "halves" if below == 2 else f"{name}s"
        said = f"{'a' if whole and above == 1 else cardinal(above)} {name if above == 1 else several}"
    elif 1 <= above <= 12 < below <= 31:
        said = f"{MONTHS[above - 1]} {ordinal(below)}"
    else:
        said = f"{cardinal(above)} {'out of' if above == below else 'over'} {cardinal(below)}"
    return f"{number(whole)} and {said}" if whole else said


def _telephone(match: re.Match[str]) -> str | None:
    groups = re.findall(r"\d+", match[0])
    if not 7 <= sum(map(len, groups)) <= 16:
        return None
    return ("plus " if match[0].startswith("+") else "") + digit_groups(groups)


def _version(match: re.Match[str]) -> str:
    return "version " + " point ".join(map(number, match["parts"].split(".")))


def _dotted(match: re.Match[str]) -> str:
    """An IP address digit by digit, another version part by part."""
    parts = match["parts"].split(".")
    if len(parts) == 4 and all(len(part) <= 3 for part in parts):
        return " dot ".join(map(digits, parts))
    return " point ".join(map(number, parts))


def _exponent(match: re.Match[str]) -> str:
    """`1.5e-3`."""
    sign = "minus " if match["sign"] == "-" else ""
    return f"{number(match['amount'])} times ten to the power of {sign}{number(match['power'])}"


def _ordinal(match: re.Match[str]) -> str:
    return ordinal(int(match["digits"].replace(",", "")))


_CODE_STARTS = r"(?<![\w.])(?<!\d[-,])"
_CODE_ENDS = r"(?![\w-]|[.,]\d)"

QUANTITIES: tuple[Rule, ...] = (
    # +44 20 7946 0958; (555) 123-4567; 555-1234; 020 7946 0958; 4111 1111 1111 1111; 123-45-6789
    rule(
        rf"(?<![\w+])\+\d{{1,3}}[ .-]?(?:\(\d{{1,5}}\)[ .-]?)?\d{{1,12}}(?:[ .-]\d{{2,5}}){{0,5}}{_CODE_ENDS}",
        _telephone,
    ),
    rule(rf"{_CODE_STARTS}(?:1[ .-])?(?:\(\d{{3}}\) ?|\d{{3}}[ .-])\d{{3}}[ .-]\d{{4}}{_CODE_ENDS}", _telephone),
    rule(rf"{_CODE_STARTS}\d{{3}}-\d{{4}}{_CODE_ENDS}", _telephone),
    rule(rf"{_CODE_STARTS}0\d{{2,4}}(?: \d{{3,4}}){{1,3}}{_CODE_ENDS}", _telephone),
    rule(
        rf"{_CODE_STARTS}\d{{4}}(?: \d{{4}}){{3}}{_CODE_ENDS}(?! \d{{4}})", lambda match: digit_groups(match[0].split())
    ),
    rule(
        rf"{_CODE_STARTS}\d{{1,12}}(?:-\d{{1,12}}){{2,8}}{_CODE_ENDS}", lambda match: digit_groups(match[0].split("-"))
    ),
    # v2.1, 1.2.3, 192.168.0.1
    rule(r"(?<![\w.])[vV]\.?(?P<parts>\d{1,9}(?:\.\d{1,9}){0,5})(?!\.?\d)", _version),
    rule(rf"{STARTS}(?P<parts>\d{{1,9}}(?:\.\d{{1,9}}){{2,5}})(?!\.?\d)", _dotted),
    # CA 90210
    rule(r"(?<=\b[A-Z]{2} )\d{5}\b", lambda match: digits(match[0])),
    # 10%-20%, $10-20, 3-5, 3–5
    rule(rf"(?<=\d)(?P<unit> ?{_UNIT_NAME}) ?[-–—] ?(?=\d)", lambda match: f"{match['unit'].strip()} to "),
    rule(
        rf"(?<!\w)(?P<sign>[$£€¥₹])(?P<first>{NUMBER}) ?[-–—] ?(?:(?P=sign))?(?={NUMBER})",
        _money_range,
    ),
    rule(
        rf"{STARTS}(?<![-/])(?P<first>{NUMBER})(?:[-–—]| [–—] )(?P<second>{NUMBER})(?![-/][A-Z\d])(?P<sum>(?= ?=))?",
        _range,
    ),
    rule(r"(?<![\w)\]}.])-(?=[$£€¥₹]?\.?\d)", "minus "),
    # $3.50, £2m, 20 EUR
    rule(rf"(?<![A-Za-z])(?P<currency>{any_of(_CURRENCIES)}) ?(?P<amount>{NUMBER}){_SCALE}{_PER}", _money),
    rule(rf"{STARTS}(?P<amount>{NUMBER}){_SCALE} ?(?P<currency>{any_of(_CURRENCIES)}){ENDS}{_PER}", _money),
    # 1h30m, 5'10"
    rule(rf"{STARTS}(?P<a>\d{{1,3}})(?P<unit>h) ?(?P<b>\d\d?)(?:m|min)?{ENDS}", _hours_and_minutes),
    rule(rf"{STARTS}(?P<a>\d{{1,3}})(?P<unit>m) ?(?P<b>\d\d?)s{ENDS}", _hours_and_minutes),
    rule(
        rf"{STARTS}(?P<feet>\d)' ?(?P<inches>\d\d?)\"",
        lambda match: f"{counted(match['feet'], 'foot', 'feet')} {counted(match['inches'], 'inch', 'inches')}",
    ),
    # 1 1/2, 3/4
    rule(
        rf"{STARTS}(?<!/)(?:(?P<whole>\d{{1,3}})[ -])?"
        r"(?P<fraction>(?P<above>\d{1,4})/(?P<below>\d{1,4}))(?![\w/]|[.,]\d)",
        _fraction,
    ),
    # 5km, 20 °C, 50%
    rule(rf"{STARTS}(?P<amount>{NUMBER})[ -]?{_UNIT}{ENDS}{_PER}(?:\.(?=,? [a-z]))?", _measure),
    rule(
        rf"{STARTS}(?P<amount>{NUMBER})(?:in{ENDS}| ?in\.(?=,? [a-z]))",
        lambda match: counted(match["amount"], "inch", "inches"),
    ),
    # 1.5e-3, 1st, 1920x1080, 2x
    rule(rf"{STARTS}(?P<amount>{NUMBER})[eE](?P<sign>[+-]?)(?P<power>\d{{1,3}}){ENDS}", _exponent),
    rule(rf"{STARTS}(?P<digits>\d{{1,3}}(?:,\d{{3}}){{1,4}}|\d{{1,15}})(?:st|nd|rd|th){ENDS}", _ordinal, re.IGNORECASE),
    rule(r"(?<=\d)(?<!\b0)x(?=\d)", "by"),
    rule(rf"(?<=\d)(?: x(?= \d)|[xX×]{ENDS})", " times"),
)

NUMBERS: tuple[Rule, ...] = (
    rule(rf"(?<![\w.,-])911(?![.,]\d){ENDS}", digits("911")),
    rule(r"(?<!\d)\.\d+", lambda match: number(match[0])),
    rule(rf"{STARTS}{NUMBER}", lambda match: bare_number(match[0])),
    rule(r"(?P<comma>,?)(?P<digits>\.?\d+)", lambda match: f"{match['comma']} {number(match['digits'])}"),
)
"""What is left of numbers when all other rules have had their turn."""
