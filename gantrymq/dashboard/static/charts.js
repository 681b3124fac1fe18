// A line chart as SVG. `series`: lists of numbers (null: unknown), the newest last, `names` what each is; `times`: ms
// since 1970. Under the pointer it shows the values and their time.
const HEIGHT = 150, LEFT = 46, BOTTOM = 20, TOP = 8;
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

function ago(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 100 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
}

export function lineChart(label, times, series, names, WIDTH = 460) {
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
  const begin = node("text", { x: times.length > 1 ? x(0) : LEFT, y: HEIGHT - 4 });
  begin.textContent = times.length > 1 && times.at(-1) - times[0] > 1000 ? ago(times.at(-1) - times[0]) : "";
  const now = node("text", { x: WIDTH - 4, y: HEIGHT - 4, "text-anchor": "end" });
  now.textContent = "now";
  svg.append(begin, now);
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
  const cursor = node("line", { class: "cursor", y1: TOP, y2: TOP + height, visibility: "hidden" });
  svg.append(cursor);
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const index = Math.max(0, Math.min(times.length - 1, Math.round(((at - LEFT) / (WIDTH - LEFT - 4)) * (count - 1) - count + times.length)));
    if (!times.length) return;
    for (const edge of ["x1", "x2"]) cursor.setAttribute(edge, x(index));
    cursor.setAttribute("visibility", "visible");
    tip.textContent = `${new Date(times[index]).toLocaleTimeString("sv")}  ${series.map((values, number) => `${names[number]} ${compact(values[index])}`).join("  ")}`;
    if (!tip.isConnected) svg.parentElement.append(tip);
    tip.hidden = false;
    const isRight = x(index) > WIDTH / 2; // the values stay away from the pointer
    tip.style.right = isRight ? "auto" : "16px";
    tip.style.left = isRight ? "70px" : "auto";
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tip.hidden = true; });
  return svg;
}
