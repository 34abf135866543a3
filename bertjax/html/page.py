"""The frame and the look of a page that needs nothing else: no network, fonts or libraries."""

from collections.abc import Iterable, Sequence
from html import escape


def page(title: str, sections: Iterable[str], script: str = "") -> str:
    """A whole page of HTML from its parts."""
    scripted = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · bertjax</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main>\n{''.join(sections)}</main>\n{scripted}</body></html>\n"
    )


def section(title: str, content: str) -> str:
    """Nothing without content."""
    return f"<section><h2>{title}</h2>\n{content}</section>\n" if content else ""


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Large numbers, each with its name under it, from pairs of name and number."""
    shown = (
        f'<div class="tile"><b>{escape(v)}</b><span>{escape(n)}</span></div>' for n, v in values
    )
    return f'<div class="tiles">{"".join(shown)}</div>'


def definition_list(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms and what they are; those that are empty are left out."""
    shown = (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs if text)
    return f"<dl>{''.join(shown)}</dl>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], css_class: str = "") -> str:
    """A table of text; `css_class` is a class of the page's style."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(row(cells, "td") for cells in rows)
    of_kind = f' class="{css_class}"' if css_class else ""
    return (
        f'<div class="scroll"><table{of_kind}><thead>{row(header, "th")}</thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


STYLE = """
:root {
  color-scheme: light dark;
  --page: #fdfdfc; --ink: #20242a; --soft: #6a7079; --line: #e8e8e4; --rule: #d3d3cd;
  --train: #2b6cb0; --heldout: #d1661c; --good: #3a8a56; --bad: #c2362f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --ink: #e3e6ea; --soft: #949ba5; --line: #282c32; --rule: #3b4048;
    --train: #6cabef; --heldout: #f09a57; --good: #6fc08b; --bad: #f0736b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans",
    Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
main { max-width: 1128px; margin: 0 auto; padding: 56px 24px 72px; }
h1 { font-size: 30px; line-height: 1.2; font-weight: 600; letter-spacing: -.015em; margin: 0; }
h2 { font-size: 18px; font-weight: 600; letter-spacing: -.005em; margin: 56px 0 20px; }
.state { margin: 0 0 10px; color: var(--soft); font-size: 14px; }
.state::before {
  content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%;
  margin-right: 8px; background: var(--train);
}
.state.finished::before { background: var(--good); }
.state.failed::before { background: var(--bad); }
.state.failed { color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: 20px 48px; margin: 30px 0 0; }
.tile b { display: block; font-size: 27px; line-height: 1.2; font-weight: 500;
  letter-spacing: -.015em; }
.tile span { color: var(--soft); font-size: 13px; }
.aside { color: var(--soft); font-size: 13px; margin: 10px 0 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 32px 0 0;
  padding-top: 22px; border-top: 1px solid var(--line); }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 36px 24px; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { display: flex; justify-content: space-between; align-items: baseline; gap: 16px;
  margin-bottom: 8px; font-size: 14px; font-weight: 600; }
figcaption small { font-size: 12px; font-weight: 400; color: var(--soft); margin-left: 6px; }
.keys { display: flex; gap: 16px; font-size: 13px; font-weight: 400; color: var(--soft);
  white-space: nowrap; }
.keys b { font-weight: 500; color: var(--ink); }
.keys i { font-style: normal; }
.keys i:empty { display: none; }
.keys span::before { content: ""; display: inline-block; width: 12px; height: 2.5px;
  border-radius: 2px; margin-right: 6px; vertical-align: 4px; background: currentColor; }
.keys .train::before { background: var(--train); }
.keys .heldout::before { background: var(--heldout); }
svg { display: block; width: 100%; height: auto; overflow: visible; touch-action: pan-y; }
svg text { font-size: 12px; fill: var(--soft); text-anchor: middle; }
svg text.value { text-anchor: end; }
svg path { fill: none; stroke: var(--soft); stroke-linecap: round; stroke-linejoin: round; }
svg .grid { stroke: var(--line); }
svg .line { stroke-width: 1.8; }
svg .raw { stroke-width: 1; opacity: .28; }
svg .dots { stroke-width: 5; }
svg path.train { stroke: var(--train); }
svg path.heldout { stroke: var(--heldout); }
svg circle { fill: var(--soft); stroke: var(--page); stroke-width: 1.5; visibility: hidden; }
svg circle.train { fill: var(--train); }
svg circle.heldout { fill: var(--heldout); }
svg .lost { stroke: var(--bad); stroke-dasharray: 2 4; }
svg .guide { stroke: var(--rule); visibility: hidden; }
.hover .guide, .hover circle.on { visibility: visible; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
.evaluations { max-height: 440px; overflow: auto; }
.evaluations table { width: 100%; }
th { position: sticky; top: 0; background: var(--page); color: var(--soft); font-weight: 500;
  font-size: 13px; text-align: right; vertical-align: bottom; }
th, td { padding: 6px 0 6px 24px; border-bottom: 1px solid var(--line); }
td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.best td { font-weight: 600; }
summary { cursor: pointer; color: var(--soft); }
.settings { margin-top: 12px; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "Liberation Mono",
  monospace; }
.settings td { text-align: left; padding: 4px 32px 4px 0; white-space: normal;
  overflow-wrap: anywhere; }
.settings td:first-child { color: var(--soft); }
@media (max-width: 760px) {
  main { padding: 32px 16px 48px; }
  .charts { grid-template-columns: 1fr; }
  .wide svg { min-width: 640px; }
  figcaption { flex-wrap: wrap; gap: 2px 16px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 10px; }
}
@media print { .evaluations { max-height: none; } figure, tr { break-inside: avoid; } }
"""
