// Answers and inputs are inserted as text, never as HTML.
const $ = id => document.getElementById(id);
const form = document.querySelector("form"), button = document.querySelector("button");

function make(tag, content = [], cssClass = "") {
  const node = document.createElement(tag);
  node.append(...[content].flat());
  if (cssClass) node.className = cssClass;
  return node;
}

function bars({ scores }) {
  const rows = scores.map(([name, score]) => {
    const bar = make("i");
    bar.style.width = 100 * score + "%";
    const percent = (100 * score).toFixed(1) + "%";
    return make("tr", [make("td", name), make("td", bar), make("td", percent)]);
  });
  return make("table", make("tbody", rows), "bars");
}

// A paragraph with marks at spans. Offsets count characters, not UTF-16 code units.
function text({ text, spans, muted }) {
  const characters = [...text], nodes = [];
  let last = 0;
  for (const [start, end, label] of spans) {
    const span = characters.slice(start, end).join("");
    nodes.push(characters.slice(last, start).join(""));
    nodes.push(make("mark", label ? [span, make("small", label)] : span));
    last = end;
  }
  nodes.push(characters.slice(last).join(""));
  return make("p", nodes, muted ? "text none" : "text");
}

const blocks = { bars, text };

function show(display, answer) {
  if (!display.length) return [make("pre", JSON.stringify(answer, null, 2))];
  return display.map(block => blocks[block.type](block));
}

function parse(value, format) {
  if (format == "lines") return value.split("\n").filter(line => line.trim());
  return format == "json" && value.startsWith("{") ? JSON.parse(value) : value;
}

function readForm() {
  const fields = [...form.querySelectorAll("textarea")];
  const values = fields.map((field, i) => [field.name, parse(field.value.trim(), formats[i])]);
  return fields[0].name ? Object.fromEntries(values) : values[0][1];
}

async function predict() {
  const request = { inputs: readForm(), return_all_scores: true }, began = performance.now();
  const body = JSON.stringify({ ...request, display: true });
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("predict", { method: "POST", headers, body });
  const { answers, display, error } = await response.json();
  if (!response.ok) throw new Error(error);
  $("answer").replaceChildren(...show(display, answers));
  $("status").textContent = Math.round(performance.now() - began) + " ms";
  const url = new URL("predict", location);
  $("request").textContent = "POST " + url + "\n" + JSON.stringify(request);
  $("response").textContent = JSON.stringify({ answers });
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  button.disabled = true;
  $("status").className = "note";
  $("status").textContent = "…";
  try {
    await predict();
  } catch (error) {
    $("answer").replaceChildren();
    $("status").className = "note failed";
    $("status").textContent = error.message;
  }
  button.disabled = false;
});
form.addEventListener("keydown", event => {
  if (event.key == "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
