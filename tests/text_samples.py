"""A text whose words name their places."""


def make_documents(count: int) -> list[list[str]]:
    """Return documents of three paragraphs of three sentences of 20 words."""

    def sentence(*place: int) -> str:
        name = "x".join(map(str, place))
        return " ".join(["Start", *(f"w{name}x{i}" for i in range(19))]) + "."

    return [[" ".join(sentence(d, p, s) for s in range(3)) for p in range(3)] for d in range(count)]
