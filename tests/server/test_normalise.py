"""Numbers, dates, money, units, abbreviations, addresses and signs become English words."""

import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from duotone.server.normalise import normalise

NUMBERS = [
    ("0", "zero"),
    ("7", "seven"),
    ("12", "twelve"),
    ("20", "twenty"),
    ("21", "twenty one"),
    ("100", "one hundred"),
    ("101", "one hundred one"),
    ("999", "nine hundred ninety nine"),
    ("1,000", "one thousand"),
    ("1,234,567", "one million two hundred thirty four thousand five hundred sixty seven"),
    ("1000000", "one million"),
    ("12345", "twelve thousand three hundred forty five"),
    ("1,234.5", "one thousand two hundred thirty four point five"),
    ("3.14", "three point one four"),
    ("0.05", "zero point zero five"),
    (".5", "point five"),
    ("007", "zero zero seven"),
    ("911", "nine one one"),
    ("-5", "minus five"),
    ("−5", "minus five"),
    ("+5", "plus five"),
    ("1e6", "one times ten to the power of six"),
    ("1.5e-3", "one point five times ten to the power of minus three"),
    ("1984", "nineteen eighty four"),
    ("2005", "two thousand five"),
    ("2000", "two thousand"),
    ("1905", "nineteen oh five"),
    ("1066", "ten sixty six"),
    ("123456789", "one two three, four five six, seven eight nine"),
    ("1234567890123456", "one two three, four five six, seven eight nine, zero one two, three four five, six"),
    ("12,00,000", "one million two hundred thousand"),
    ("1,5", "one, five"),
    ("٣٤", "thirty four"),
    ("①", "one"),
    ("Ⅷ", "eight"),
    ("5.", "five."),
    ("(5)", "(five)"),
    ('"5"', '"five"'),
]
ORDINALS_PLURALS = [
    ("1st", "first"),
    ("the 2nd floor", "the second floor"),
    ("3rd", "third"),
    ("21st-century", "twenty first-century"),
    ("101st", "one hundred first"),
    ("1,000th", "one thousandth"),
    ("20th", "twentieth"),
    ("the 1990s", "the nineteen nineties"),
    ("the '90s", "the nineties"),
    ("in her 20s", "in her twenties"),
    ("the class of '26", "the class of twenty six"),
]
DATES = [
    ("12/25/2026", "December twenty fifth, twenty twenty six"),
    ("1/2/05", "January second, two thousand five"),
    ("25/12/2026", "December twenty fifth, twenty twenty six"),
    ("25.12.2026", "December twenty fifth, twenty twenty six"),
    ("2026-11-29", "November twenty ninth, twenty twenty six"),
    ("2026-12-25T15:05", "December twenty fifth, twenty twenty six, fifteen oh five"),
    ("Dec 25", "December twenty fifth"),
    ("Dec. 25th, 2026", "December twenty fifth, twenty twenty six"),
    ("December 25, 2026, was", "December twenty fifth, twenty twenty six, was"),
    ("25 December 2026", "the twenty fifth of December, twenty twenty six"),
    ("the 4th of July", "the fourth of July"),
    ("on 4 July 1776.", "on the fourth of July, seventeen seventy six."),
    ("Sept. 11, 2001", "September eleventh, two thousand one"),
    ("Jan 2026", "January twenty twenty six"),
    ("in Feb. or March", "in February or March"),
    ("May 5", "May fifth"),
    ("Mon, Dec 25", "Monday, December twenty fifth"),
    ("Mon-Fri", "Monday to Friday"),
    ("the 12th–14th", "the twelfth to fourteenth"),
    ("12/25", "December twenty fifth"),
    ("13/13/2026", "thirteen slash thirteen slash twenty twenty six"),
    ("2026-13-01", "two zero two six, one three, zero one"),
]
TIMES = [
    ("3:05pm", "three oh five p m"),
    ("3:05 p.m. today", "three oh five p m today"),
    ("10am", "ten a m"),
    ("10 a.m. The", "ten a m. The"),
    ("12:30:05", "twelve thirty and five seconds"),
    ("15:30", "fifteen thirty"),
    ("3:00", "three o'clock"),
    ("15:00", "fifteen hundred"),
    ("00:00", "midnight"),
    ("9:00-17:00", "nine o'clock to seventeen hundred"),
    ("9am-5pm", "nine a m to five p m"),
    ("10:00 a.m.–5:00 p.m.", "ten a m to five p m."),
    ("10:30–11:15", "ten thirty to eleven fifteen"),
    ("12:60", "twelve to sixty"),
]
MONEY = [
    ("$3.50", "three dollars and fifty cents"),
    ("$1", "one dollar"),
    ("$1.01", "one dollar and one cent"),
    ("$0.99", "ninety nine cents"),
    ("$1,200", "one thousand two hundred dollars"),
    ("£2m", "two million pounds"),
    ("£1.01", "one pound and one penny"),
    ("€1,200.50", "one thousand two hundred euros and fifty cents"),
    ("$2.5 million", "two point five million dollars"),
    ("$1.5bn", "one point five billion dollars"),
    ("$100K", "one hundred thousand dollars"),
    ("-$5", "minus five dollars"),
    ("US$5", "five U S dollars"),
    ("USD 20", "twenty U S dollars"),
    ("20 EUR", "twenty euros"),
    ("5€", "five euros"),
    ("¥500", "five hundred yen"),
    ("50¢", "fifty cents"),
    ("$10-20", "ten to twenty dollars"),
    ("$10.50-$12.75", "ten dollars and fifty cents to twelve dollars and seventy five cents"),
    ("$5/month", "five dollars per month"),
    ("$3/kg", "three dollars per kilogram"),
    ("$", "dollars"),
]
UNITS = [
    ("5km", "five kilometers"),
    ("5 km", "five kilometers"),
    ("1 km", "one kilometer"),
    ("1 lb", "one pound"),
    ("180 lbs.", "one hundred eighty pounds."),
    ("5 ft. tall", "five feet tall"),
    ("5 in a row", "five in a row"),
    ("6 in. wide", "six inches wide"),
    ("20°C", "twenty degrees Celsius"),
    ("-5 °F", "minus five degrees Fahrenheit"),
    ("90°", "ninety degrees"),
    ("50%", "fifty percent"),
    ("0.5%", "zero point five percent"),
    ("16GB", "sixteen gigabytes"),
    ("2.4GHz", "two point four gigahertz"),
    ("60 km/h", "sixty kilometers per hour"),
    ("9.8 m/s²", "nine point eight meters per second squared"),
    ("12 m²", "twelve square meters"),
    ("5 m3", "five cubic meters"),
    ("10 mph", "ten miles per hour"),
    ("30 s", "thirty seconds"),
    ("1h30m", "one hour thirty minutes"),
    ("5'10\"", "five feet ten inches"),
    ("100 mg", "one hundred milligrams"),
    ("5μm", "five micrometers"),
    ("5㎏", "five kilograms"),
    ("1920x1080", "nineteen twenty by ten eighty"),
    ("10x", "ten times"),
    ("3 x 4", "three times four"),
]
FRACTIONS_RANGES_RATIOS = [
    ("1/2", "one half"),
    ("3/4", "three quarters"),
    ("2/3", "two thirds"),
    ("1 1/2", "one and a half"),
    ("5½", "five and a half"),
    ("2 1/4 cups", "two and a quarter cups"),
    ("7/8", "seven eighths"),
    ("24/7", "twenty four seven"),
    ("9/11", "nine eleven"),
    ("120/80", "one hundred twenty over eighty"),
    ("10/10", "ten out of ten"),
    ("3–5", "three to five"),
    ("3-5", "three to five"),
    ("5 – 3", "five to three"),
    ("10-15 km", "ten to fifteen kilometers"),
    ("1914-18", "nineteen fourteen to eighteen"),
    ("1990–1995", "nineteen ninety to nineteen ninety five"),
    ("50-50", "fifty fifty"),
    ("10%-20%", "ten percent to twenty percent"),
    ("5-3 = 2", "five minus three equals two"),
    ("5 - 3", "five minus three"),
    ("16:9", "sixteen to nine"),
    ("2-3-4", "two, three, four"),
]
TELEPHONES_CODES_VERSIONS = [
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("+1 (555) 123-4567", "plus one, five five five, one two three, four five six seven"),
    ("(555) 123-4567", "five five five, one two three, four five six seven"),
    ("555-123-4567", "five five five, one two three, four five six seven"),
    ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
    ("555-1234", "five five five, one two three four"),
    ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
    ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
    ("123-45-6789", "one two three, four five, six seven eight nine"),
    ("CA 90210", "C A nine zero two one zero"),
    ("192.168.0.1", "one nine two dot one six eight dot zero dot one"),
    ("10.0.0.1:80", "one zero dot zero dot zero dot one: eighty"),
    ("v2.1", "version two point one"),
    ("version 2.1.3", "version two point one point three"),
    ("Python 3.11", "Python three point one one"),
]
NAMES = [
    ("Dr. Smith", "Doctor Smith"),
    ("Dr Smith", "Doctor Smith"),
    ("Mulholland Dr.", "Mulholland Drive."),
    ("St. Mary", "Saint Mary"),
    ("Main St.", "Main Street."),
    ("on Elm St. The end", "on Elm Street. The end"),
    ("12 Main St. Louis", "twelve Main Street Louis"),
    ("in St. Louis, near Oak St., too", "in Saint Louis, near Oak Street, too"),
    ("Mr. and Mrs. Jones", "Mister and Missus Jones"),
    ("Ms. Lee, Prof. Kay, Gov. May", "Miz Lee, Professor Kay, Governor May"),
    ("the Gen Z", "the Gen Z"),
    ("Ft. Worth, Mt. Rainier", "Fort Worth, Mount Rainier"),
    ("John Smith Jr.", "John Smith Junior."),
    ("Acme Inc. and Sons Ltd.", "Acme Incorporated and Sons Limited."),
    ("e.g. this, i.e. that", "for example this, that is that"),
    ("E.g. this", "For example this"),
    ("apples, etc.", "apples, et cetera."),
    ("apples, etc. The end", "apples, et cetera. The end"),
    ("us vs. them", "us versus them"),
    ("No. 5", "number five"),
    ("No. No, thanks.", "No. No, thanks."),
    ("№ 5", "number five"),
    ("p. 5, pp. 6-7", "page five, pages six to seven"),
    ("Fig. 3a", "figure three a"),
    ("w/ and w/o sugar", "with and without sugar"),
    ("a.k.a. Bob", "also known as Bob"),
    ("WW2", "World War Two"),
    ("World War II", "World War two"),
    ("Ph.D.", "P H D"),
    ("U.S. Army", "U S Army"),
    ("the U.S. The", "the U S. The"),
    ("J. R. R. Tolkien", "J R R Tolkien"),
    ("John F. Kennedy", "John F Kennedy"),
    ("Vitamin C. The", "Vitamin C. The"),
    ("Henry VIII", "Henry the eighth"),
    ("Pope John Paul II", "Pope John Paul the second"),
    ("Elizabeth I was queen.", "Elizabeth the first was queen."),
    ("Chapter IV", "Chapter four"),
    ("Act I, Scene V", "Act one, Scene five"),
    ("the XXI century", "the twenty first century"),
    ("Final Fantasy VII", "Final Fantasy seven"),
]
LETTERS = [
    ("FBI", "F B I"),
    ("a", "A."),
    ("W", "W."),
    ("plan B", "plan B"),
    ("NASA", "Nasa"),
    ("USA", "U S A"),
    ("the CEO's", "the C E O's"),
    ("CDs", "C D's"),
    ("STOP!", "stop!"),
    ("do NOT go", "do not go"),
    ("I LOVE THIS SONG", "I love this song"),
    ("OK", "okay"),
    ("HTTP and html", "H T T P and H T M L"),
    ("MP3", "M P three"),
    ("COVID-19", "Covid-nineteen"),
    ("B2B", "B two B"),
    ("R2D2", "R two D two"),
    ("GitHub", "Git Hub"),
    ("OpenAI", "Open A I"),
    ("iPhone", "i Phone"),
    ("McDonald", "McDonald"),
]
ADDRESSES = [
    ("https://www.example.com/docs?x=1.", "W W W dot example dot com slash docs question mark x equals one."),
    ("example.com", "example dot com"),
    ("www.example.org", "W W W dot example dot org"),
    ("node.js", "node dot J S"),
    ("README.md", "readme dot M D"),
    ("the end.The start", "the end.The start"),
    ("john.smith_1@example.co.uk", "john dot smith underscore one at example dot co dot U K"),
    ("snake_case_name", "snake case name"),
    ("C:\\Users", "C: backslash Users"),
]
SIGNS = [
    ("a & b", "a and b"),
    ("AT&T", "A T and T"),
    ("x = 3", "x equals three"),
    ("a+b=c", "a plus b equals c"),
    ("C++", "C plus plus"),
    ("C#", "C sharp"),
    ("A+", "A plus"),
    ("18+", "eighteen plus"),
    ("me @ home", "me at home"),
    ("@name", "at name"),
    ("#1", "number one"),
    ("#tag", "hashtag tag"),
    ("~5", "about five"),
    ("5 * 3", "five times three"),
    ("3 × 4", "three times four"),
    ("10 ÷ 2", "ten divided by two"),
    ("5 ± 1", "five plus or minus one"),
    ("x²", "x squared"),
    ("10⁶", "ten to the power of six"),
    ("2^10", "two to the power of ten"),
    ("a <= b", "a less than or equal to b"),
    ("1 < 2", "one less than two"),
    ("x > -1", "x greater than minus one"),
    ("~$5, <5km", "about five dollars, less than five kilometers"),
    ("<b>bold</b>", "b bold b"),
    ("/usr/bin", "usr slash bin"),
    ("Hi!!! :)", "Hi!!! :)"),
    ("(up 5 %).", "(up five percent)."),
    ("√2", "square root of two"),
    ("a → b", "a to b"),
    ("and/or", "and or"),
    ("he/she", "he slash she"),
    ("H2O", "H two O"),
    ("© 2026", "copyright twenty twenty six"),
    ("Lego®", "Lego"),
    ("§ 5", "section five"),
    ("π", "pi"),
    ("1次", "one 次"),
]
PAUSES_PLAIN_TEXT = [
    ("one — two", "one, two"),
    ("one—two", "one, two"),
    ("one – two", "one, two"),
    ("one - two", "one, two"),
    ("so... then", "so, then"),
    ("So... Then", "So. Then"),
    ("…", "."),
    ("“quoted” it’s", '"quoted" it\'s'),
    ("café Zürich straße", "cafe Zurich strasse"),
    ("ﬁne", "fine"),
    ("1. first", "one, first."),
    ("1) first", "one, first."),
    ("ft (On, Brightn.", "ft (On, Brightn."),
    ("Hello, world!", "Hello, world!"),
    ("twenty-one mother-in-law don't", "twenty-one mother-in-law don't"),
    ("Paris–London", "Paris-London"),
]
SPOKEN = [
    *NUMBERS,
    *ORDINALS_PLURALS,
    *DATES,
    *TIMES,
    *MONEY,
    *UNITS,
    *FRACTIONS_RANGES_RATIOS,
    *TELEPHONES_CODES_VERSIONS,
    *NAMES,
    *LETTERS,
    *ADDRESSES,
    *SIGNS,
    *PAUSES_PLAIN_TEXT,
]


@pytest.mark.parametrize(("written", "said"), SPOKEN)
def test_what_is_written_becomes_what_is_said(written, said):
    assert normalise(written) == said


@pytest.mark.parametrize(("written", "said"), SPOKEN)
def test_what_is_said_stays_when_it_is_normalised_again(written, said):
    assert normalise(said) == said


def test_a_paragraph_of_everything():
    written = (
        "On 12/25/2026 at 3:05pm, Dr. Smith drove 5km (3.1 mi) to St. Mary's for $3.50, i.e. 50% of £2m?\n"
        "See https://example.com/faq, or call +44 20 7946 0958!"
    )
    assert normalise(written) == (
        "On December twenty fifth, twenty twenty six at three oh five p m, Doctor Smith drove five kilometers "
        "(three point one miles) to Saint Mary's for three dollars and fifty cents, that is fifty percent of two "
        "million pounds?\nSee example dot com slash faq, or call plus four four, two zero, seven nine four six, zero "
        "nine five eight!"
    )


MARKS = [*"0123456789", *" .,:;!?-–—/%$£€#@&+=<>()[]'\"°²³×~^*|_\\\n…½①٣Ⅷ次é\u0301", *string.ascii_letters]
FRAGMENTS = [*MARKS, "Dr. ", "St. ", "No. ", "1st", "Dec ", "km", "p.m.", "http://", "www.", "U.S.", "10", "the"]


@given(st.one_of(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join), st.text(max_size=60)))
def test_no_text_fails_and_no_digit_is_left(text):
    said = normalise(text)
    assert not any(sign.isdigit() for sign in said)
    assert said.count("\n") == text.count("\n")


WORD = st.from_regex(r"[A-Z]?[a-z]?(?:[bcdfghklmnprstvwz]?[aeiou]){1,5}[nrst]?", fullmatch=True)
WORDS = st.lists(
    st.tuples(WORD.filter(lambda word: word != "aka"), st.sampled_from([" ", ", ", "; ", "! ", "? "])), min_size=1
)
OTHERS = ["5km", "$3.50", "12/25/2026", "3:05pm", "#1", "Mrs.", "1/2", "&", "—", "1次", "e.g.", "50%", "FBI", "a@b.com"]


@given(WORDS)
def test_plain_words_are_left_alone(words):
    text = "".join(word + mark for word, mark in words).strip()
    assume(len(text) > 1)  # a letter alone is its name
    assert normalise(text) == text


@given(WORDS, st.lists(st.sampled_from(OTHERS)))
def test_no_word_beside_others_is_lost(words, others):
    pairs = list(zip(words, others, strict=False))
    said = iter(normalise("".join(f"{word}{mark}{other} " for (word, mark), other in pairs)).split())
    assert all(any(word == heard.rstrip(",;!?") for heard in said) for (word, _), _ in pairs)


@pytest.mark.parametrize(
    "sign",
    [
        *(
            "1",
            "1,",
            "1.",
            "1/",
            "1-",
            "1:",
            "1 ",
            "$1",
            "(1",
            "+1 ",
            "1. a\n",
            "1920x1080",
            "12/25/2026 ",
            "5m ",
            "12 Mai ",
        ),
        *("a", "A", "A.", "A. ", "aB", "a.", "a/", "a@", "@", "www.", "http://a", "I ", "Dr. ", "e.g. ", "St. A"),
        *(".", "... ", "-", "—", " — ", " ", "\n", "=", "_", "²", "½", "é", "e\u0301", "\u0301", "次"),
    ],
)
def test_it_takes_time_in_proportion_to_the_text(sign):
    text = (sign * 100_000)[:100_000] + "x"
    begun_s = time.process_time()
    normalise(text)
    assert time.process_time() - begun_s < 5
