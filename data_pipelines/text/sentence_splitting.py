"""Rule-based sentence splitting.

A sentence ends
- after a run of `。` `！` `？` `｡`, or of the stops of Khmer, Burmese, Tibetan, Ethiopic or
  Armenian, with any closing quotes and brackets;
- after a run of `.` `!` `?` `…` `।` `॥` `؟` `۔` with any closing quotes and brackets, if white
  space and a possible sentence start follow: any opening quotes and brackets, then a digit or a
  letter that is not lower case. In a line without capitals, lower case is a possible start too;
- at white space between letters of Thai or Lao, which have no stops and separate sentences and
  clauses by spaces, after at least 40 characters.

A single full stop does not end a sentence
- after a word that introduces a name or more text (Dr. No, vs. France);
- after a word that introduces a number, if a digit follows (No. 5, vol. 2, Sept. 11);
- after an initial, letters with stops, or an abbreviation that may end a sentence (J. Smith,
  U.S. Army, Smith Jr. of Ohio), unless the next word often starts a sentence (The, He, In);
- after a number or letter at the start of the sentence, which numbers a list item.

No text is lost: the sentences joined are the line, apart from white space at their ends.
"""

# ruff: noqa: RUF001 (the rules need characters of many scripts)

import re
from collections.abc import Iterator

SENTENCE_RULES_VERSION = 2  # stored with a corpus; increase it when a rule changes

_STOPS, _WIDE_STOPS = ".!?…।॥؟۔", "。！？｡។៕။།༎።։"
_CLOSING, _WIDE_CLOSING = r"\"'”’»)\]}", "」』）】》"
# Every match starts with one of a few characters, so the search skips the others. It starts at the
# first stop of a run, so the search is linear.
_REST = rf"(?<![{_STOPS}]{{2}})(?P<more>[{_STOPS}]*)[{_CLOSING}]*\s+(?=[^\w\s]*(?P<next>\w))"
_END = re.compile(
    rf"[{_STOPS}{_WIDE_STOPS}](?:"
    rf"(?<=[{_WIDE_STOPS}])[{_WIDE_STOPS}]*[{_WIDE_CLOSING}{_CLOSING}]*\s*|{_REST})"
)
_OTHER_STOPS = (_STOPS + _WIDE_STOPS).replace(".", "")
_THAI_OR_LAO = re.compile("[\u0e01-\u0e4e\u0e81-\u0ece]")
_CLAUSE = re.compile(rf"(?<={_THAI_OR_LAO.pattern})\s+(?={_THAI_OR_LAO.pattern})")
_MIN_CLAUSE_CHARACTERS = 40
_COUNTER = re.compile(r"[0-9]+|[A-Za-z]")
_INITIALS = re.compile(r"[A-Z]|[^\W\d_]{1,2}(?:\.[^\W\d_]{1,2})+")
_WORD_BEFORE = re.compile(r"[\w.]*\Z")
_WORD = re.compile(r"\w+")
_MAX_WORD_LENGTH = 12  # characters read before a full stop: more than any known abbreviation has


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
# A search for one character is much faster than for several. The lookbehind recognizes a word with
# more letters than any abbreviation, about every second full stop.
_END_AT_FULL_STOP = re.compile(rf"\.(?:(?<=[a-z]{{{_LONGEST_KNOWN + 1}}}\.)\s+(?=[A-Z])|{_REST})")
_OFTEN_FIRST = _word_set(
    """After All Although An And As At Because Before Both But By During Each For From He Her Here
    His How However If In It Its Many Most My Not On One Our She Since So Some Such That The Their
    Then There These They This Those Though To Under Until We What When Where Which While Who Why
    With You Your"""
)


def split_sentences(line: str) -> list[str]:
    """Return the sentences of a line, stripped; none is empty."""
    line = line.strip()
    sentences = []
    start = 0
    has_other_stops = any(map(line.__contains__, "!?" if line.isascii() else _OTHER_STOPS))
    lower = line.islower()
    for end in (_END if has_other_stops else _END_AT_FULL_STOP).finditer(line):
        more, following = end.groups()
        at, stop = end.span()
        if following and following.islower() and not lower:
            continue
        if following and not more and line[at] == ".":
            # Most full stops follow a plain word: its last letters are enough to recognize it.
            word = line[max(start, at - _LONGEST_KNOWN - 1) : at].rpartition(" ")[2]
            is_plain = len(word) > 1 and word.isalpha() and word.lower() not in _KNOWN
            if not is_plain and not _ends_sentence(line, start, end, lower):
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
        if space.start() - start >= _MIN_CLAUSE_CHARACTERS:
            yield sentence[start : space.start()]
            start = space.end()
    yield sentence[start:]


def _ends_sentence(line: str, start: int, end: re.Match[str], lower: bool) -> bool:
    """Return whether a sentence ends at a full stop that does not follow a plain word.

    Args:
      line: the line.
      start: first character of the sentence.
      end: match of `_END` at the full stop.
      lower: whether the line is in lower case, so that any word may start a sentence.
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
