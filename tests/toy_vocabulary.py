"""A small vocabulary, and strings that are difficult to tokenize."""

from hypothesis import strategies as st

from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = (
    *SPECIAL_TOKENS,
    *("[unused0]", "un", "##aff", "##able", "want", "##want", "##ed", "runn", "##ing", "日", "本"),
    *(form + sign for sign in LETTERS + "0123456789,.!?'-[]#$" for form in ("", "##")),
    *("σ", "##σ", "##ς", "ß", "##ß", "é", "##é", "한", "##국"),
)
CASED_TOKENS = (*TOKENS, "Un", *LETTERS.upper(), *("##" + sign for sign in LETTERS.upper()))
TRICKY = st.sampled_from([*"aBΣσςéÉİ日,.'-:;()\"[ \t\n\r", *"\u0301\u00ad\x0b\u00a0\u2028\ud800"])
