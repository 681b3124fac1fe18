// A line chart as SVG. `series`: lists of numbers (null: unknown), the newest last; `times`: ms since 1970.
const WIDTH = 460, HEIGHT = 150, LEFT = 46, BOTTOM = 20, TOP = 8;
const COLORS = ["var(--accent)", "var(--series-2)"];

export function compact(value) {
  if (value === null || value === undefined) return "–";
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

function niceMax(value) {
  if (value <= 5) return 5;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function node(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export function lineChart(label, times, series) {
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const max = niceMax(Math.max(1, ...series.flat().filter((value) => value !== null)));
  const height = HEIGHT - BOTTOM - TOP;
  const y = (value) => TOP + height * (1 - value / max);
  const count = Math.max(2, times.length);
  const x = (index) => LEFT + ((WIDTH - LEFT - 4) * (index + count - times.length)) / (count - 1);
  for (const share of [0, 0.5, 1]) {
    svg.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(max * share), y2: y(max * share) }));
    const text = node("text", { x: LEFT - 7, y: y(max * share) + 4, "text-anchor": "end" });
    text.textContent = compact(max * share);
    svg.append(text);
  }
  const ago = node("text", { x: LEFT, y: HEIGHT - 4 });
  ago.textContent = times.length > 1 ? `${Math.round((times.at(-1) - times[0]) / 1000)} s ago` : "";
  const now = node("text", { x: WIDTH - 4, y: HEIGHT - 4, "text-anchor": "end" });
  now.textContent = "now";
  svg.append(ago, now);
  series.forEach((values, number) => {
    let path = "", pen = false;
    values.forEach((value, index) => {
      if (value === null) pen = false;
      else { path += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`; pen = true; }
    });
    if (number === 0 && path && !values.includes(null) && values.length > 1)
      svg.append(node("path", { d: `${path}L${x(values.length - 1)} ${y(0)}L${x(0)} ${y(0)}Z`, fill: COLORS[0], opacity: 0.09 }));
    svg.append(node("path", { d: path, fill: "none", stroke: COLORS[number], "stroke-width": 2, "stroke-linejoin": "round", "vector-effect": "non-scaling-stroke" }));
  });
  return svg;
}
