"""Words in capitals: which are spelled letter by letter, and which are words."""

import re

from .rule import Rule, any_of, rule, words

_SAID_AS_WORDS = words("""
    AIDS ASCII BIOS CAPTCHA COVID DRAM FEMA FIFA GIF HEPA HIPAA IKEA JSON LAN LASER MODEM NAFTA NASA NASDAQ NATO OPEC
    OSHA PIN RADAR RAM ROM SARS SCUBA SIM SONAR SPAM SWAT UNESCO UNICEF VAT WAN WASP YAML ZIP
""")
_SPELLED = words("""
    AARP ACLU AKA AOL ASAP BYOB DIY EOD ETA FAQ IEEE IOU IPO NAACP NCAA ROI RSVP UAE UCLA UEFA UFO UNHCR USA USCIS
    USDA YMCA
""")
"""Acronyms that look as if they could be read."""
_PLAIN_WORDS = words("""
    ALL AM AN AND ANY ARE AS ASK AT BAD BE BIG BRR BUT BUY BY CAN CAR CAT DAY DID DO DOG DON END EVEN FAR FOR FUN GET
    GO GOD GOT HAD HAS HE HER HEY HIM HIS HMM HOT HOW IF IN IS ITS JOB KEY LAW LET LOT LOW MAN MAY ME MEN MOM MY NEW
    NO NOT NOW OF OFF OH OLD ON ONE OR OUR OUT OWN PAY PSST PUT RED RUN SAW SAY SEE SET SHE SHH SIX SO SON SUN TAX TEN
    THE TO TOO TOP TRY TSK TWO UP USE WAR WAS WAY WE WHO WHY WIN WON WOW YES YET YOU YOUR
""")
"""Short words that are written in capitals to be loud."""
_LOWER_CASE = words("html css php pdf tv dvd usb url urls xml http https www npm gpu cpu ssh sql tts")
_READABLE = re.compile(r"(?:[^AEIOUY]{0,2}[AEIOUY]{1,2})+[^AEIOUY]{0,2}")
"""Of four letters; fewer are spelled, if they are no known words, and more with a vowel among them are read."""
_MOST_SPELLED = 6
_FEWEST_LOUD_SPACES = 2
_CAPITALS = re.compile(r"(?<![\w'])(?P<word>[A-Z]{2,30})(?P<plural>s)?(?![A-Za-z\d])")


def spelled(letters: str) -> str:
    """`Html` → "H T M L"."""
    return " ".join(letters.upper())


def acronyms(text: str, shout: bool) -> str:
    """Text in which words of capitals are spelled or written as words; in a shout, no short word is spelled."""
    return Rule(_CAPITALS, lambda match: _said(match["word"], shout) + ("'s" if match["plural"] else "")).apply(text)


def is_shout(text: str) -> bool:
    """Whether a text is in capitals because its writer is loud."""
    return text.isupper() and text.count(" ") >= _FEWEST_LOUD_SPACES


def _said(word: str, shout: bool) -> str:
    if word in _SAID_AS_WORDS:
        return word.capitalize()
    if word == "OK":
        return "okay"
    return spelled(word) if _is_spelled(word, shout) else word.lower()


def _is_spelled(word: str, shout: bool) -> bool:
    if word in _PLAIN_WORDS or len(word) > _MOST_SPELLED:
        return False
    if word in _SPELLED or not set(word) & set("AEIOUY"):
        return True
    return not shout and (len(word) < 4 or (len(word) == 4 and _READABLE.fullmatch(word) is None))


LETTERS: tuple[Rule, ...] = (
    rule(rf"(?<![\w.])(?:{any_of(_LOWER_CASE)})(?!\w|\.\w)", lambda match: spelled(match[0])),
    # GitHub, OpenAI; not McDonald
    rule(r"(?<=[a-z])(?<!\bMc)(?<!\bMac)(?=[A-Z])", " "),
    # A letter that is all there is to say: its name, not the word "a".
    rule(r"\A[A-Za-z]\Z", lambda match: f"{match[0].upper()}."),
)
