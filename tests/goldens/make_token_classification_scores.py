"""Make token_classification_scores.npz: entity counts of random tags by conlleval and seqeval.

    python tests/goldens/make_token_classification_scores.py

Needs seqeval (1.2.2). `conlleval` below follows the rules of CoNLL-2000's Perl script, for one
sentence. Python's own generator draws the tags, the same on every machine, so only counts are
stored: gold, predicted and correct entities, summed over `BLOCK` sentences.
"""

import pathlib
import random

import numpy as np

PATH = pathlib.Path(__file__).with_name("token_classification_scores.npz")
SENTENCES, BLOCK = 10_000, 20
PREFIXES = {"BIO": "BI", "IOB1": "BI", "IO": "I", "IOBES": "BIES", "BILOU": "BILU"}
STRICT = {"BIO": "IOB2", "IOBES": "IOBES", "BILOU": "BILOU"}
TYPES = ("per", "loc")
# Tags that the Perl script counts differently; predictions equal the gold tags.
ODD = {
    "an end before a beginning": ["B-per", "E-per", "B-per", "E-per"],
    "single words side by side": ["S-per", "S-per"],
}

Counts = tuple[int, int, int]  # gold, predicted, correct


def draw_pair(scheme: str, number: int) -> tuple[list[str], list[str]]:
    """Return gold and predicted tags of a sentence."""
    draw = random.Random(f"{scheme} {number}")
    size = draw.randint(1, 14)
    gold = draw_tags(scheme, size, draw)
    if number % 4 == 0:
        return gold, draw_tags(scheme, size, draw)
    return gold, [tag if draw.random() < 0.8 else draw_tag(scheme, draw) for tag in gold]


def draw_tag(scheme: str, draw: random.Random) -> str:
    """Return a random tag of a scheme."""
    if draw.random() < 0.35:
        return "O"
    return f"{draw.choice(PREFIXES[scheme])}-{draw.choice(TYPES)}"


def draw_tags(scheme: str, size: int, draw: random.Random) -> list[str]:
    """Return tags of a sentence; two thirds of the sentences follow the scheme."""
    if draw.random() < 0.33:
        return [draw_tag(scheme, draw) for _ in range(size)]
    tags: list[str] = []
    while len(tags) < size:
        kind, length = draw.choice(TYPES), draw.randint(1, 3)
        single, first, last = {
            "BIO": "BBI", "IOB1": "III", "IO": "III", "IOBES": "SBE", "BILOU": "UBL",
        }[scheme]  # fmt: skip
        if draw.random() < 0.4:
            tags.append("O")
            continue
        prefixes = single if length == 1 else first + "I" * (length - 2) + last
        if scheme == "IOB1" and tags and tags[-1].endswith(kind):
            prefixes = "B" + prefixes[1:]
        tags += [f"{prefix}-{kind}" for prefix in prefixes]
    return tags[:size]


ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}  # of a chunk, by two successive prefixes
STARTS = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}


def conlleval(gold: list[str], predicted: list[str]) -> Counts:
    """Return the counts of a sentence by the rules of the script."""
    counts = [0, 0, 0]
    inside = False
    before = [("O", ""), ("O", "")]
    for tags in [*zip(gold, predicted, strict=True), ("O", "O")]:
        now = [(tag[0], tag[2:]) for tag in tags]
        ends, starts = [], []
        for (prefix, kind), (last, last_kind) in zip(now, before, strict=True):
            other = kind != last_kind
            ends.append(last + prefix in ENDS or (last != "O" and other))
            starts.append(last + prefix in STARTS or (prefix != "O" and other))
        if inside and all(ends) and before[0][1] == before[1][1]:
            inside = False
            counts[2] += 1
        elif inside and (ends[0] != ends[1] or now[0][1] != now[1][1]):
            inside = False
        if all(starts) and now[0][1] == now[1][1]:
            inside = True
        counts[0] += starts[0]
        counts[1] += starts[1]
        before = now
    return counts[0], counts[1], counts[2]


def seqeval_counts(gold: list[str], predicted: list[str]) -> Counts:
    """Return the counts of seqeval's default mode."""
    from seqeval.metrics.sequence_labeling import get_entities

    as_iobes = str.maketrans("LU", "ES")
    expected, actual = (
        set(get_entities([tag[0].translate(as_iobes) + tag[1:] for tag in tags]))
        for tags in (gold, predicted)
    )
    return len(expected), len(actual), len(expected & actual)


def strict_counts(gold: list[str], predicted: list[str], scheme: str) -> Counts:
    """Return the counts of seqeval's strict mode."""
    from seqeval import scheme as schemes

    kind = getattr(schemes, STRICT[scheme])
    expected, actual = (
        {entity.to_tuple()[1:] for entity in schemes.Tokens(tags, kind).entities}
        for tags in (gold, predicted)
    )
    return len(expected), len(actual), len(expected & actual)


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    for scheme in PREFIXES:
        pairs = [draw_pair(scheme, number) for number in range(SENTENCES)]
        if scheme in ("BIO", "IOB1", "IO"):
            arrays[f"{scheme} conlleval"] = blocks([conlleval(*pair) for pair in pairs])
        arrays[f"{scheme} seqeval"] = blocks([seqeval_counts(*pair) for pair in pairs])
        if scheme in STRICT:
            arrays[f"{scheme} strict"] = blocks([strict_counts(*pair, scheme) for pair in pairs])
    for name, tags in ODD.items():
        arrays[name] = np.array(conlleval(tags, tags), np.uint8)
    np.savez_compressed(PATH, **arrays)


def blocks(counts: list[Counts]) -> np.ndarray:
    """Return sums over blocks of sentences, uint8 [SENTENCES / BLOCK, 3]."""
    sums = np.array(counts).reshape(-1, BLOCK, 3).sum(axis=1)
    assert sums.max() < 256
    return sums.astype(np.uint8)


if __name__ == "__main__":
    main()
