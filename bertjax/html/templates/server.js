// Answers and inputs are inserted as text, never as HTML.
const $ = id => document.getElementById(id);
const form = document.querySelector("form"), button = document.querySelector("button");

function make(tag, content = [], cssClass = "") {
  const node = document.createElement(tag);
  node.append(...[content].flat());
  if (cssClass) node.className = cssClass;
  return node;
}

function bars(probabilities) {
  const rows = probabilities.slice(0, 20).map(([name, probability]) => {
    const bar = make("i");
    bar.style.width = 100 * probability + "%";
    const percent = (100 * probability).toFixed(1) + "%";
    return make("tr", [make("td", name), make("td", bar), make("td", percent)]);
  });
  return make("table", make("tbody", rows), "bars");
}

const descending = probabilities => probabilities.sort((a, b) => b[1] - a[1]);

// The text with marks at spans. Offsets count characters, not UTF-16 code units.
function marked(text, spans) {
  const characters = [...text], nodes = [];
  let last = 0;
  for (const { start, end, type } of spans) {
    const span = characters.slice(start, end).join("");
    nodes.push(characters.slice(last, start).join(""));
    nodes.push(make("mark", type ? [span, make("small", type)] : span));
    last = end;
  }
  return make("p", [...nodes, characters.slice(last).join("")], "text");
}

const show = {
  fill_mask: answer => [make("p", answer.filled, "text"), ...answer.masks.map(
    guesses => bars(guesses.map(guess => [guess.piece, guess.probability])))],
  continue: answer => [make("p", [answer.text, " ", make("mark", answer.continued)], "text")],
  answer: (answer, inputs) => answer.text
    ? [make("p", answer.text, "text"), marked(inputs.context, [answer])]
    : [make("p", "The passage has no answer.", "text none")],
  classify: answer => {
    const labels = [answer.label ?? answer.labels ?? answer.number].flat().join(", ");
    return [make("p", labels || "no label", "text"), bars(descending(Object.entries(
      answer.probabilities ?? {})))];
  },
  tag: answer => [answer.entities.length
    ? marked(answer.text, answer.entities) : make("p", "No entities.", "text none")],
  choose: (answer, inputs) => [make("p", answer.answer, "text"), bars(descending(
    answer.probabilities.map((probability, i) => [inputs.choices[i], probability])))],
  predict: answer => [make("pre", JSON.stringify(answer, null, 2))],
};

function readForm() {
  const fields = [...form.querySelectorAll("textarea")];
  if (!fields[0].name) {
    const text = fields[0].value.trim();
    return kind == "predict" && text.startsWith("{") ? JSON.parse(text) : text;
  }
  const inputs = Object.fromEntries(fields.map(field => [field.name, field.value.trim()]));
  if (kind == "choose") inputs.choices = inputs.choices.split("\n").filter(line => line.trim());
  return inputs;
}

async function predict() {
  const inputs = readForm(), began = performance.now();
  const everything = ["classify", "choose"].includes(kind);
  const body = JSON.stringify({ inputs, everything });
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("predict", { method: "POST", headers, body });
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  $("answer").replaceChildren(...show[kind](content.answers, inputs));
  $("status").textContent = Math.round(performance.now() - began) + " ms";
  $("request").textContent = "POST " + new URL("predict", location) + "\n" + body;
  $("response").textContent = JSON.stringify(content);
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
