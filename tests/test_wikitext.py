"""Text of wikitext; the dumps of `test_wikipedia` have every kind of markup at once."""

import pytest

pytest.importorskip("mwparserfromhell", reason="needs pip install 'bertjax[wikipedia]'")

from data_pipelines.text.wikitext import make_extractor

ARTICLE = """\
{{Infobox|name={{nowrap|Tea}}
|kind=drink}}
'''Tea''' is a [[drink]]<ref>{{cite|[[x]]}}</ref> of ''leaves''.
It is &quot;old&quot;.

== History<!-- h --> ==
[[File:A.jpg|thumb|A [[cup]] of tea.]]
Tea came from [[China|the east]].
* green [[tea]]
** very green
{| class=x
| a || b
|}
Another passage.

== References ==
<references />
[[Category:Drinks]]
"""


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (
            "passages",
            [
                'Tea is a drink of leaves. It is "old".',
                "Tea came from the east.",
                "Another passage.",
            ],
        ),
        (
            "lists",
            [
                'Tea is a drink of leaves. It is "old".',
                "History",
                "Tea came from the east.",
                "green tea",
                "very green",
                "Another passage.",
                "References",
            ],
        ),
        ("markup", [line.strip() for line in ARTICLE.split("\n") if line.strip()]),
    ],
)
def test_extractor_keeps_the_content_that_is_chosen(content: str, lines: list[str]) -> None:
    assert make_extractor(content, [])(ARTICLE) == lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tea ({{IPA|x}}; {{lang|zh|y}}) is old.", "Tea is old."),
        ("Tea ({{IPA|x}}, also cha) is old .", "Tea (also cha) is old."),
        ("A <ref name='x'/>b <ref>c</ref>d<ref name=y>e</ref>.", "A b d."),
        ("A [http://e.org link], [http://e.org] and http://e.org end.", "A link, and end."),
        ("[[Fichier:a.png|x]]A [[:fr:Thé|tea]] [[wikt:tea|word]] [[pl:Herbata]].", "A tea word."),
        ("[[Bild:a.png|mini]][[Bild:b|mini|B [[c]].]]A.[[Bild:c.SVG]]", "A."),
        ("A [[Tea#Uses|use]] of [[tea]]s<br>and <small>more</small>.", "A use of teas and more."),
        ("A &nbsp; b &#x41; &amp; &#xd800; c.", "A b A & \ufffd c."),
        ("A {{a|{{b|c}}}}{{d|{{{e|f}}}}}[[OS&nbsp;X]].", "A OS\u00a0X."),
        ("<nowiki>[[A]]</nowiki> b __NOTOC__", "[[A]] b"),
        ("-{zh-hans:茶叶;zh-hant:茶葉}-很-{老}-。", "茶叶很老。"),
        ("A {{unclosed [[link and ''text''.", "A {{unclosed [[link and text."),
        ("{{unclosed\n| a = b\n}\nText.", "Text."),
        ("A <!-- never closed", "A"),
        ("<source>x = [[1]]</source>A <code>f()</code> b.", "A b."),
        ("* an item<br />goes on\n:: <span>another</span>\nA.", "A."),
        ("<div>\nA.\n</div>", "A."),
        ("The &lt;br&gt; tag <x>is</x> 5 < 6 > 2.", "The <br> tag is 5 < 6 > 2."),
        ("----\n* \n{{x}}\n...", None),
    ],
)
def test_extractor_removes_markup(text: str, expected: str | None) -> None:
    assert make_extractor("passages", ["Fichier"])(text) == ([expected] if expected else [])


def test_extractor_reads_a_line_of_many_equals_signs_as_text() -> None:
    lines = f"== A = b ==\nOne.\n\n=={'a = ' * 200}==\n"
    assert make_extractor("lists", [])(lines) == ["A = b", "One.", f"{'a = ' * 200}=="]
