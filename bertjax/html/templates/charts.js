// All charts show the values at the step under the pointer.
const charts = [...document.querySelectorAll("figure[data-curves]")].map(figure => ({
  svg: figure.querySelector("svg"),
  stepText: figure.querySelector("i"),
  guide: figure.querySelector(".guide"),
  curves: JSON.parse(figure.dataset.curves).map(({steps, values, y}, n) => ({
    steps,
    values: values.split(" "),
    y,
    label: figure.querySelectorAll(".keys b")[n],
    lastValue: figure.querySelectorAll(".keys b")[n].textContent,
    marker: figure.querySelectorAll("circle")[n],
  })).filter(curve => curve.steps.length),
}));
const nearest = (steps, step) => steps.reduce(
  (best, s, i) => Math.abs(s - step) < Math.abs(steps[best] - step) ? i : best, 0);

function show(step) {
  for (const {svg, stepText, guide, curves} of charts) {
    const {left, right, last} = svg.dataset;
    const x = s => +left + (right - left) * s / Math.max(last, 1);
    guide.style.transform = `translateX(${x(step)}px)`;
    stepText.textContent = `step ${step.toLocaleString("en")}`;
    for (const {steps, values, y, label, marker} of curves) {
      const i = nearest(steps, step), known = step >= steps[0] && step <= steps.at(-1);
      label.textContent = known ? values[i] : "-";
      marker.classList.toggle("on", known);
      marker.setAttribute("cx", x(steps[i]));
      marker.setAttribute("cy", y[i]);
    }
  }
  document.body.classList.add("hover");
}

function hide() {
  document.body.classList.remove("hover");
  for (const {stepText, curves} of charts) {
    stepText.textContent = "";
    for (const {label, lastValue} of curves) label.textContent = lastValue;
  }
}

for (const {svg, curves} of charts.filter(chart => chart.curves.length)) {
  svg.addEventListener("pointermove", event => {
    const {left, right, last} = svg.dataset, box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const {steps} = curves.reduce((a, b) => b.steps.length > a.steps.length ? b : a);
    show(steps[nearest(steps, (x - left) / (right - left) * last)]);
  });
  svg.addEventListener("pointerleave", hide);
}
