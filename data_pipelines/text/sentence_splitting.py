"""A line of text to sentences, by rule.

A sentence ends
- after a run of `。` `！` `？` `｡`, or of the stops of Khmer, Burmese, Tibetan, Ethiopic, Armenian,
  and the closing quotes and brackets behind it;
- after a run of `.` `!` `?` `…` `।` `॥` `؟` `۔` and the closing quotes and brackets behind it,
  where white space follows and then, after any opening quotes and brackets, something that can
  start a sentence: a digit, or a letter that is not lower-case. In a line without a capital it
  may be lower-case.

- where white space stands between letters of Thai or Lao, which have no stops and put spaces
  between sentences and clauses, if at least 40 characters came before it.

A full stop by itself does not end one
- after a word that introduces a name or a sequel (Dr. No, vs. the rest);
- after a word that introduces a number, when a digit follows (No. 5, vol. 2, Sept. 11);
- after an initial, letters with stops between, or an abbreviation that can stand at the end
  (J. Smith, U.S. Army, Smith Jr. of Ohio), unless the next word is one that often starts a sentence
  (The, He, In);
- after a number or letter that starts the sentence: it counts the items of a list.

Nothing is lost: the sentences put together are the line, but for white space at their ends.
"""

# ruff: noqa: RUF001 (signs of many scripts are what this file is about)

import re
from collections.abc import Iterator

SENTENCE_RULES_VERSION = 2  # what is above; changes with it

_STOPS, _WIDE_STOPS = ".!?…।॥؟۔", "。！？｡។៕။།༎።։"
_CLOSING, _WIDE_CLOSING = r"\"'”’»)\]}", "」』）】》"
# That every match starts with one of a few signs lets the search skip what lies between; that it
# starts a run of them keeps the search linear.
_REST = rf"(?<![{_STOPS}]{{2}})(?P<more>[{_STOPS}]*)[{_CLOSING}]*\s+(?=[^\w\s]*(?P<next>\w))"
_END = re.compile(
    rf"[{_STOPS}{_WIDE_STOPS}](?:"
    rf"(?<=[{_WIDE_STOPS}])[{_WIDE_STOPS}]*[{_WIDE_CLOSING}{_CLOSING}]*\s*|{_REST})"
)
_OTHER_STOPS = (_STOPS + _WIDE_STOPS).replace(".", "")
_THAI_OR_LAO = re.compile("[\u0e01-\u0e4e\u0e81-\u0ece]")
_CLAUSE = re.compile(rf"(?<={_THAI_OR_LAO.pattern})\s+(?={_THAI_OR_LAO.pattern})")
_SHORT_CLAUSE = 40  # characters, below which a space ends none
_COUNTER = re.compile(r"[0-9]+|[A-Za-z]")
_INITIALS = re.compile(r"[A-Z]|[^\W\d_]{1,2}(?:\.[^\W\d_]{1,2})+")
_WORD_BEFORE = re.compile(r"[\w.]*\Z")
_WORD = re.compile(r"\w+")
_MAX_WORD_LENGTH = (
    12  # characters of the longest word that can matter before a full stop, and to spare
)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BEFORE_A_NAME = _word_set(
    """adm approx attn brig capt cf cmdr col cpl dr e.g eg fr gen gov hon i.e ie lt maj messrs mlle
    mme mr mrs ms msgr mt mx pres prof pvt rep rev sen sgt st supt v viz vs"""
)
_BEFORE_A_NUMBER = _word_set(
    """apr art aug c ca ch circa dec ed eq eqs feb fig figs jan jul jun mar no nos nov oct p para
    pp sec sect sep sept ver vol vols"""
)
_ABBREVIATIONS = _word_set("al assn ave bldg blvd bros co corp dept est etc inc jr ltd sr univ")
_KNOWN = _BEFORE_A_NAME | _BEFORE_A_NUMBER | _ABBREVIATIONS
_LONGEST_KNOWN = max(map(len, _KNOWN))
# One sign is searched for far faster than several. Behind more letters than any known word has it
# is an end, about every second time.
_END_AT_FULL_STOP = re.compile(rf"\.(?:(?<=[a-z]{{{_LONGEST_KNOWN + 1}}}\.)\s+(?=[A-Z])|{_REST})")
_OFTEN_FIRST = _word_set(
    """After All Although An And As At Because Before Both But By During Each For From He Her Here
    His How However If In It Its Many Most My Not On One Our She Since So Some Such That The Their
    Then There These They This Those Though To Under Until We What When Where Which While Who Why
    With You Your"""
)


def split_sentences(line: str) -> list[str]:
    """Sentences of a line, stripped, none of them empty."""
    line = line.strip()
    sentences = []
    start = 0
    others = any(map(line.__contains__, "!?" if line.isascii() else _OTHER_STOPS))
    lower = line.islower()
    for end in (_END if others else _END_AT_FULL_STOP).finditer(line):
        more, following = end.groups()
        at, stop = end.span()
        if following and following.islower() and not lower:
            continue
        if following and not more and line[at] == ".":
            # Most stops are behind a plain word, of which the last letters tell enough.
            word = line[max(start, at - _LONGEST_KNOWN - 1) : at].rpartition(" ")[2]
            plain = len(word) > 1 and word.isalpha() and word.lower() not in _KNOWN
            if not plain and not _ends_sentence(line, start, end, lower):
                continue
        sentences.append(line[start:stop].rstrip())
        start = stop
    if start < len(line):
        sentences.append(line[start:])
    if not line.isascii() and _THAI_OR_LAO.search(line):
        return [clause for sentence in sentences for clause in _clauses(sentence)]
    return sentences


def _clauses(sentence: str) -> Iterator[str]:
    start = 0
    for space in _CLAUSE.finditer(sentence):
        if space.start() - start >= _SHORT_CLAUSE:
            yield sentence[start : space.start()]
            start = space.end()
    yield sentence[start:]


def _ends_sentence(line: str, start: int, end: re.Match[str], lower: bool) -> bool:
    """Whether the sentence that began at `start` ends at a full stop, `end`, behind no plain word.

    In a line of lower case (`lower`), any word may begin a sentence.
    """
    at = end.start()
    match = _WORD_BEFORE.search(line, max(start, at - _MAX_WORD_LENGTH), at)
    word = match[0] if match else ""
    known = word.lower()
    if known in _BEFORE_A_NAME:
        return False
    if start + len(word) == at and _COUNTER.fullmatch(word):
        return False
    if known in _ABBREVIATIONS or _INITIALS.fullmatch(word.upper() if lower else word):
        following = _WORD.match(line, end.start("next"))
        word = following[0] if following else ""
        return (word.capitalize() if lower else word) in _OFTEN_FIRST
    return known not in _BEFORE_A_NUMBER or not end["next"].isdigit()
