"""The page of a served model: something to type into, and what the model says of it."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from bertjax.html.page import page
from bertjax.inference.model import METHODS
from bertjax.inference.predictor import Predictor
from bertjax.tasks.sequence_classification.data import columns_from_config


class _FormField(NamedTuple):
    """A box to type into: its key in an input, its label, what stands there first, its lines."""

    key: str
    label: str
    text: str = ""
    lines: int = 3


_FORM_FIELDS: Mapping[str, list[_FormField]] = {
    "fill_mask": [_FormField("", "Text", "The capital of France is [MASK].")],
    "continue": [_FormField("", "Text", "The capital of France is")],
    "answer": [
        _FormField("question", "Question", "Where is Oslo?", 1),
        _FormField("context", "Passage", "Oslo lies in Norway.", 9),
    ],
    "tag": [_FormField("", "Text", "Ada Lovelace wrote to Charles Babbage.", 5)],
    "choose": [
        _FormField("context", "Text", "She opens the"),
        _FormField("choices", "MultipleChoiceDataset, one a line", "door\nsky", 5),
    ],
    "predict": [_FormField("", "Text, or an object of JSON", "", 5)],
}


def render_page(predictor: Predictor) -> str:
    """The page, which asks the server that it comes from."""
    kind = METHODS.get(predictor.config.task, "predict")
    if kind == "fill_mask" and predictor.config.model.causal:
        kind = "continue"
    fields = _column_fields(predictor) if kind == "classify" else _FORM_FIELDS[kind]
    boxes = "".join(
        f"<label>{escape(each.label)}"
        f'<textarea name="{escape(each.key)}" rows="{each.lines}" spellcheck="false" required>'
        f"\n{escape(each.text)}</textarea></label>\n"
        for each in fields
    )
    name = (
        predictor.path.parent.parent.name if predictor.path.name.isdigit() else predictor.path.name
    )
    body = (
        f"<style>{STYLE}</style>\n"
        f'<header><p class="state finished">{escape(str(predictor.path))}</p>'
        f"<h1>This model {escape(predictor.description)}</h1></header>\n"
        f'<form>{boxes}<p><button>Ask</button> <span id="said" class="aside" role="status">'
        f"</span></p></form>\n"
        '<section id="answer" aria-live="polite"></section>\n'
        "<details><summary>The same from a program</summary>"
        '<pre id="asked"></pre><pre id="answered"></pre></details>\n'
    )
    return page(name, [body], f"const kind = {_json(kind)};\n{SCRIPT}")


def _column_fields(predictor: Predictor) -> list[_FormField]:
    """A box for each text that a classifier reads."""
    columns = columns_from_config(predictor.config)
    names = (*columns.text, *columns.text_pair)
    if len(names) == 1:
        return [_FormField("", "Text", lines=5)]
    return [_FormField(name, name) for name in names]


def _json(content: Any) -> str:
    return json.dumps(content).replace("<", "\\u003c")  # which could end a script


STYLE = """
main { max-width: 820px; }
header h1 { font-size: 26px; }
form { margin-top: 32px; }
label { display: block; margin-bottom: 18px; color: var(--soft); font-size: 13px; }
textarea { display: block; width: 100%; margin-top: 5px; padding: 10px 12px; resize: vertical;
  border: 1px solid var(--rule); border-radius: 6px; background: transparent; color: var(--ink);
  font: inherit; font-size: 15px; }
textarea:focus, button:focus-visible { outline: 2px solid var(--train); outline-offset: 1px; }
button { padding: 8px 22px; border: 0; border-radius: 6px; background: var(--train);
  color: var(--page); font: inherit; font-weight: 500; cursor: pointer; }
button:disabled { opacity: .5; cursor: default; }
#said { margin-left: 12px; }
#said.failed { color: var(--bad); }
#answer { margin: 28px 0; min-height: 1px; }
#answer .text { font-size: 17px; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 18px; }
#answer .none { color: var(--soft); }
#answer mark { color: inherit; border-radius: 3px; padding: 1px 3px;
  background: color-mix(in srgb, var(--train) 22%, transparent); }
#answer mark small { margin-left: 5px; color: var(--soft); font-size: 11px; }
.bars { width: 100%; margin-bottom: 22px; }
.bars td { border: 0; padding: 3px 12px 3px 0; white-space: normal; overflow-wrap: anywhere; }
.bars td:first-child { width: 34%; }
.bars td:last-child { width: 60px; padding-right: 0; }
.bars i { display: block; height: 9px; min-width: 1px; border-radius: 2px;
  background: var(--train); }
.bars tr:not(:first-child) i { opacity: .45; }
pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "Liberation Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: 12px 0; max-height: 320px;
  overflow: auto; }
"""

# All that a model or a person says comes to the page as text, never as HTML.
SCRIPT = """
const $ = id => document.getElementById(id);
const form = document.querySelector("form"), button = document.querySelector("button");

function make(tag, content = [], kind = "") {
  const node = document.createElement(tag);
  node.append(...[content].flat());
  if (kind) node.className = kind;
  return node;
}

function bars(chances) {
  const rows = chances.slice(0, 20).map(([name, chance]) => {
    const bar = make("i");
    bar.style.width = 100 * chance + "%";
    const share = (100 * chance).toFixed(1) + "%";
    return make("tr", [make("td", name), make("td", bar), make("td", share)]);
  });
  return make("table", make("tbody", rows), "bars");
}

const surest = chances => chances.sort((a, b) => b[1] - a[1]);

// The text with some of its parts marked; places count characters, not units of UTF-16.
function marked(text, parts) {
  const characters = [...text], found = [];
  let at = 0;
  for (const { start, end, type } of parts) {
    const own = characters.slice(start, end).join("");
    found.push(characters.slice(at, start).join(""));
    found.push(make("mark", type ? [own, make("small", type)] : own));
    at = end;
  }
  return make("p", [...found, characters.slice(at).join("")], "text");
}

const show = {
  fill_mask: answer => [make("p", answer.filled, "text"), ...answer.masks.map(
    guesses => bars(guesses.map(guess => [guess.piece, guess.probability])))],
  continue: answer => [make("p", [answer.text, " ", make("mark", answer.continued)], "text")],
  answer: (answer, asked) => answer.text
    ? [make("p", answer.text, "text"), marked(asked.context, [answer])]
    : [make("p", "The passage has no answer.", "text none")],
  classify: answer => {
    const said = [answer.label ?? answer.labels ?? answer.number].flat().join(", ");
    return [make("p", said || "no label", "text"), bars(surest(Object.entries(
      answer.probabilities ?? {})))];
  },
  tag: answer => [answer.entities.length
    ? marked(answer.text, answer.entities) : make("p", "No entities.", "text none")],
  choose: (answer, asked) => [make("p", answer.answer, "text"), bars(surest(
    answer.probabilities.map((chance, i) => [asked.choices[i], chance])))],
  predict: answer => [make("pre", JSON.stringify(answer, null, 2))],
};

function input() {
  const fields = [...form.querySelectorAll("textarea")];
  if (!fields[0].name) {
    const text = fields[0].value.trim();
    return kind == "predict" && text.startsWith("{") ? JSON.parse(text) : text;
  }
  const said = Object.fromEntries(fields.map(field => [field.name, field.value.trim()]));
  if (kind == "choose") said.choices = said.choices.split("\\n").filter(line => line.trim());
  return said;
}

async function ask() {
  const inputs = input(), began = performance.now();
  const everything = ["classify", "choose"].includes(kind);
  const body = JSON.stringify({ inputs, everything });
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("predict", { method: "POST", headers, body });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error);
  $("answer").replaceChildren(...show[kind](found.answers, inputs));
  $("said").textContent = Math.round(performance.now() - began) + " ms";
  $("asked").textContent = "POST " + new URL("predict", location) + "\\n" + body;
  $("answered").textContent = JSON.stringify(found);
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  button.disabled = true;
  $("said").className = "aside";
  $("said").textContent = "…";
  try {
    await ask();
  } catch (error) {
    $("answer").replaceChildren();
    $("said").className = "aside failed";
    $("said").textContent = error.message;
  }
  button.disabled = false;
});
form.addEventListener("keydown", event => {
  if (event.key == "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
"""
