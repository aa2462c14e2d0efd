"use strict";
// Draws the document that Python gathered. Text enters the page as text nodes only, so a name cannot become markup.

const AXES = { round: "rounds", sim_seconds: "simulated seconds", gradients: "gradients", megabytes: "MB sent" };
const SCORES = { accuracy: "test accuracy", loss: "test loss", train_loss: "training loss" };
const COLOURS = 7;
const PARTS = { whole: "whole run", half: "second half" };
const chosen = { axis: null, score: null, part: "whole", hidden: new Set() };
const page = document.getElementById("page");
let doc = JSON.parse(document.getElementById("data").textContent);

// Elements

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "rect", "text", "g", "title", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (name === "colour") node.style[value.what] = value.of;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

const armColour = i => `var(--arm-${i % COLOURS})`;
const armDash = i => [null, "7 4", "2 3", "9 3 2 3"][Math.floor(i / COLOURS) % 4];  // beyond seven arms colours repeat
// Long names may break after their own marks.
const breakable = name => make("span", {}, ...name.split(/(?<=[:+,=/])/).flatMap((part, k) => k ? [make("wbr"), part] : [part]));
const swatch = i => make("svg", { width: 26, height: 10, "aria-hidden": true },
  make("line", { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 4, "stroke-dasharray": armDash(i), colour: { what: "stroke", of: armColour(i) } }));
const dot = i => make("span", { class: "dot", colour: { what: "background", of: armColour(i) } });
const shown = i => !chosen.hidden.has(doc.arms[i].name);

// Numbers

function plain(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size >= 100) return value.toFixed(1).replace(/\.0$/, "");
  if (size === 0 || Number.isInteger(value)) return String(value);
  return size < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough) || rough;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return { found, label: value => tickLabel(value, step) };
}

function tickLabel(value, step) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (step < 1e-4) return value === 0 ? "0" : value.toExponential(1);
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
}

// Line charts

function lines(column, axis, keys = { mean: "mean", low: "low", high: "high" }) {
  const found = [];
  doc.arms.forEach((arm, i) => {
    if (!shown(i)) return;
    const add = (curve, extra) => {
      const points = points_of(curve, axis, keys);
      if (points.length) found.push({ arm: i, name: arm.name, points, ...extra });
    };
    if (arm.curves[column]) add(arm.curves[column], {});
    for (const run of arm.running)
      if (run.curves[column]) add(run.curves[column], { thin: arm.seeds > 0, name: `${arm.name}, seed ${run.seed} so far` });
  });
  return found;
}

function points_of(curve, axis, keys) {
  const low = curve[keys.low] || curve[keys.mean], high = curve[keys.high] || curve[keys.mean];
  return curve[keys.mean].map((y, k) => ({ x: curve[axis][k], y, low: low[k], high: high[k] }))
    .filter(point => point.x !== null && point.y !== null);
}

function lineChart(series, { width, height, xName, yName, target = null, label }) {
  const all = series.flatMap(one => one.points);
  if (!all.length) return make("p", { class: "why" }, "Nothing to draw: no arm is shown, or none has these numbers.");
  let low = Math.min(...all.map(p => p.low)), high = Math.max(...all.map(p => p.high));
  if (target !== null) { low = Math.min(low, target); high = Math.max(high, target); }
  if (high === low) { const pad = Math.abs(high) * 0.1 || 1; low -= pad; high += pad; }
  const first = Math.min(...all.map(p => p.x)), reach = Math.max(...all.map(p => p.x));
  const last = reach > first ? reach : first + 1;
  const yTicks = ticks(low, high, height / 45);
  const names = yTicks.found.map(yTicks.label);
  const box = { left: 12 + 7 * Math.max(3, ...names.map(n => n.length)), right: width - 12, top: 12, bottom: height - 38 };
  const xTicks = ticks(first, last, (box.right - box.left) / 80);
  const X = x => box.left + (x - first) / (last - first) * (box.right - box.left);
  const Y = y => box.bottom - (y - low) / (high - low) * (box.bottom - box.top);
  const path = (points, y) => points.map((p, k) => `${k ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(y(p)).toFixed(1)}`).join("");
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  yTicks.found.forEach((value, k) => svg.append(
    make("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(value), y2: Y(value) }),
    make("text", { x: box.left - 6, y: Y(value) + 4, "text-anchor": "end" }, names[k])));
  for (const value of xTicks.found)
    svg.append(make("text", { x: X(value), y: box.bottom + 17, "text-anchor": "middle" }, xTicks.label(value)));
  svg.append(make("text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, xName));
  const wide = series.filter(one => one.points.some(p => p.low !== p.high));
  for (const one of wide) {
    const points = one.points;
    svg.append(make("path", { class: "edge", colour: { what: "stroke", of: armColour(one.arm) },
      d: path(points, p => p.low) + path(points, p => p.high) }));
    svg.append(make("path", { class: "band", "fill-opacity": wide.length > 3 ? .07 : .1, colour: { what: "fill", of: armColour(one.arm) },
      d: path(points, p => p.low) + path([...points].reverse(), p => p.high).replace("M", "L") + "Z" }));
  }
  if (target !== null) svg.append(
    make("line", { class: "target", x1: box.left, x2: box.right, y1: Y(target), y2: Y(target) }),
    make("text", { x: box.left + 4, y: Y(target) + (Y(target) < box.top + 14 ? 15 : -5) }, `target ${plain(target)}`));
  for (const one of series) {
    const look = { class: one.thin ? "curve thin" : "curve", "stroke-dasharray": one.thin ? null : armDash(one.arm) };
    svg.append(make("path", { ...look, d: path(one.points, p => p.y), colour: { what: "stroke", of: armColour(one.arm) } }));
    if (one.points.length === 1)
      svg.append(make("circle", { cx: X(one.points[0].x), cy: Y(one.points[0].y), r: 3, colour: { what: "fill", of: armColour(one.arm) } }));
  }
  const chart = make("div", { class: "chart" }, svg);
  chart.series = series;
  hover(chart, svg, series, { width, box, first, last, X, xName, yName });
  return chart;
}

function hover(chart, svg, series, { width, box, first, last, X, xName, yName }) {
  const guide = make("line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" });
  svg.append(guide);
  let tip = null;
  const leave = () => { if (tip) tip.remove(); tip = null; guide.setAttribute("visibility", "hidden"); };
  const move = event => {
    const frame = svg.getBoundingClientRect(), at = (event.clientX - frame.left) * width / frame.width;
    if (at < box.left - 8 || at > box.right + 8) return leave();
    const x = first + Math.min(1, Math.max(0, (at - box.left) / (box.right - box.left))) * (last - first);
    const near = series.map(one => ({ one, point: one.points.reduce((a, b) => Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a) }));
    for (const side of ["x1", "x2"]) guide.setAttribute(side, X(x));
    guide.setAttribute("visibility", "visible");
    if (!tip) chart.append(tip = make("div", { class: "tip" }));
    tip.replaceChildren(make("div", {}, make("b", {}, `${yName} near ${plain(x)} ${xName}`)),
      ...near.map(({ one, point }) => make("div", {}, dot(one.arm), `${one.name}: `, make("b", {}, plain(point.y)),
        point.low !== point.high ? ` (${plain(point.low)} to ${plain(point.high)})` : "")));
    const right = at > width / 2;
    tip.style.left = right ? "auto" : `${(X(x) + 14) / width * 100}%`;
    tip.style.right = right ? `${(1 - (X(x) - 14) / width) * 100}%` : "auto";
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", leave);
}

// Other pictures

function bars(panel, { width, height, xName, yName }) {
  if (panel.counts.length < 2)
    return make("p", {}, panel.counts.length ? `All ${panel.counts[0].toLocaleString("en")} ${yName}: ${panel.names[0]} ${xName}.` : "There are none.");
  const most = Math.max(...panel.counts, 1), scale = ticks(0, most, height / 50);
  const whole = scale.found.filter(Number.isInteger);
  const left = 14 + 7 * Math.max(...whole.map(v => scale.label(v).length)), bottom = height - 38, top = 10;
  const wide = (width - left - 8) / panel.counts.length, Y = v => bottom - v / most * (bottom - top);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yName} by ${xName}` });
  for (const value of whole) svg.append(
    make("line", { class: "grid", x1: left, x2: width - 8, y1: Y(value), y2: Y(value) }),
    make("text", { x: left - 6, y: Y(value) + 4, "text-anchor": "end" }, scale.label(value)));
  const longest = Math.max(...panel.names.map(n => n.length)), every = Math.max(1, Math.ceil((longest * 7 + 8) / wide));
  panel.counts.forEach((count, k) => {
    svg.append(make("rect", { class: "bar", x: left + k * wide + 1, width: Math.max(1, wide - 2), y: Y(count), height: bottom - Y(count) },
      make("title", {}, `${panel.names[k]} ${xName}: ${count.toLocaleString("en")} ${yName}`)));
    if (k % every === 0)
      svg.append(make("text", { x: left + (k + .5) * wide, y: bottom + 17, "text-anchor": "middle" }, panel.names[k]));
  });
  svg.append(make("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, xName));
  return make("div", { class: "chart" }, svg);
}

function labelPicture(panel, { width }) {
  const rows = panel.cells.length, columns = panel.columns.length;
  const cut = name => name.length > 14 ? `${name.slice(0, 13)}…` : name;  // whole names are in the titles of cells
  const left = 16 + 7 * Math.max(...panel.rows.map(r => cut(r).length)), wide = (width - left - 4) / columns;
  const tall = Math.max(9, Math.min(22, 320 / rows)), height = rows * tall + 44;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "labels by client" });
  panel.cells.forEach((row, r) => {
    const y = (rows - 1 - r) * tall + 2;
    if (r % Math.ceil(14 / tall) === 0)
      svg.append(make("text", { x: left - 6, y: y + tall / 2 + 4, "text-anchor": "end" }, cut(panel.rows[r])));
    row.forEach((share, c) => {
      if (share > 0) svg.append(make("rect", { class: "cell", x: left + c * wide, y, width: Math.max(.5, wide - .4), height: tall - .6,
        "fill-opacity": Math.min(1, .12 + .88 * share) },
      make("title", {}, `client ${panel.columns[c]}, label ${panel.rows[r]}: ${Math.round(share * 100)} % of the samples`)));
    });
  });
  svg.append(make("line", { class: "grid", x1: left, x2: width - 4, y1: rows * tall + 3, y2: rows * tall + 3 }));
  const starts = panel.columns.map(name => cut(name.split("–")[0])), room = 8 + 7 * Math.max(5, ...starts.map(name => name.length));
  const every = Math.max(1, Math.ceil(columns * room / (width - left)));
  starts.forEach((name, c) => {
    const x = left + (c + .5) * wide;
    if (c % every === 0 && x < width - 3.5 * name.length) svg.append(make("text", { x, y: rows * tall + 19, "text-anchor": "middle" }, name));
  });
  svg.append(make("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "client"));
  return make("div", { class: "chart" }, svg);
}

function sortedAccuracies(panel, size) {
  const series = [];
  panel.arms.forEach((arm, i) => {
    if (!arm.sorted || !shown(i)) return;
    const n = arm.sorted.length;
    const points = arm.sorted.map((y, k) => ({ x: n > 1 ? 100 * k / (n - 1) : 100, y, low: y, high: y }));
    series.push({ arm: i, name: doc.arms[i].name, points });
  });
  return lineChart(series, { ...size, xName: "% of clients, the worst first", yName: "accuracy", label: "accuracy of clients, sorted" });
}

// Tables

function table(heads, rows, first) {
  const head = make("tr", {}, make("th", {}, first), ...heads.map(text => make("th", {}, text)));
  const body = rows.map(({ arm, name, cells }) => make("tr", { class: shown(arm) ? null : "off" },
    make("td", {}, dot(arm), breakable(name)), ...cells.map((text, k) => make("td", { "data-head": heads[k] }, text))));
  return make("table", { class: "cards" }, make("thead", {}, head), make("tbody", {}, ...body));
}

// A column for each algorithm; `heads` are columns before them, and a row is { name, before, cells }.
function armTable(id, first, heads, rows) {
  const head = make("tr", {}, make("th", {}, first), ...heads.map(text => make("th", {}, text)),
    ...doc.arms.map((arm, i) => make("th", {}, dot(i), breakable(arm.name))));
  const body = rows.map(({ name, before, cells }) => make("tr", {}, make("td", {}, name),
    ...before.map((text, k) => make("td", { "data-head": heads[k] }, text)),
    ...cells.map((text, i) => make("td", { "data-head": doc.arms[i].name }, text))));
  return make("table", { class: "cards", id }, make("thead", {}, head), make("tbody", {}, ...body));
}

const valueTable = values => armTable("values", "column", [],
  Object.entries(values).map(([name, cells]) => ({ name, before: [], cells: cells.map(plain) })));

const keys = values => make("dl", {},
  ...Object.entries(values).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
const indexOf = name => doc.arms.findIndex(arm => arm.name === name);

// The parts of the page, in the order one reads

function verdictPart() {
  const said = doc.verdict;
  return [
    make("h1", {}, `${doc.task}, ${doc.arms.length} algorithm${doc.arms.length > 1 ? "s" : ""}`),
    doc.data ? make("p", { class: "faint", id: "data-words" }, doc.data) : null,
    make("p", { class: "headline", id: "headline" }, said.headline),
    make("ul", { class: "points" }, ...said.points.map(text => make("li", {}, text))),
    ...said.warnings.map(text => make("p", { class: "warning" }, text)),
  ];
}

function tablePart() {
  const rows = doc.table.rows.map((cells, i) => ({ arm: i, name: doc.arms[i].name, cells }));
  const parts = [make("h2", {}, "Comparison"), table(doc.table.heads, rows, "algorithm"),
    make("p", { class: "faint", id: "table-notes" }, ["Costs are means over seeds. Brackets and ± are 95 % intervals (for the speed-up: a bootstrap over pairs of seeds).",
      ...doc.table.notes].join(" "))];
  if (doc.versus.length) {
    const target = doc.counted, best = doc.versus[0].best;
    const heads = [...(target ? [`${doc.versus[0].cost} saved`, "reaches the target"] : []), "better at the end by", "ends"];
    const against = doc.versus.map(line => ({ arm: indexOf(line.other), name: line.other,
      cells: [...(target ? [line.rounds, line.rounds_said] : []), line.end, line.end_said] }));
    parts.push(make("h3", {}, `${best} compared with each other algorithm`), table(heads, against, "compared with"));
  }
  return parts;
}

function buttons(names, current, choose) {
  if (Object.keys(names).length < 2) return null;
  return make("div", { class: "group", role: "group" }, ...Object.entries(names).map(([key, text]) =>
    make("button", { id: `choose-${key}`, "aria-pressed": String(key === current), onclick: () => { choose(key); draw(); } }, text)));
}

function legend() {
  return make("div", { class: "legend" }, ...doc.arms.map((arm, i) => make("button", { id: `arm-${i}`, "aria-pressed": String(shown(i)),
    title: "show or hide this algorithm everywhere",
    onclick: () => { shown(i) ? chosen.hidden.add(arm.name) : chosen.hidden.delete(arm.name); draw(); } }, swatch(i), breakable(arm.name))));
}

function hasAxis(axis) {
  return doc.arms.some(arm => [arm, ...arm.running].some(one => Object.values(one.curves).some(curve => (curve[axis] || []).some(v => v !== null))));
}

function inPart(series) {
  if (chosen.part === "whole") return series;
  const half = Math.max(0, ...series.flatMap(one => one.points.map(p => p.x))) / 2;
  return series.map(one => ({ ...one, points: one.points.filter(p => p.x >= half) })).filter(one => one.points.length);
}

function curvesPart(width) {
  const scores = Object.fromEntries(doc.columns.scores.map(name => [name, SCORES[name] || name]));
  if (!(chosen.score in scores)) chosen.score = doc.metric;
  const yName = scores[chosen.score] || chosen.score, target = chosen.score === "accuracy" ? doc.target : null;
  const size = { width, height: Math.max(260, Math.min(430, width * .55)) };
  const drawn = (axis, size) => lineChart(inPart(lines(chosen.score, axis)),
    { ...size, xName: AXES[axis], yName, target, label: `${yName} against ${AXES[axis]}` });
  const axes = Object.fromEntries(Object.entries(AXES).filter(([axis]) => hasAxis(axis)));
  chosen.axis = chosen.axis || (hasAxis("sim_seconds") ? "sim_seconds" : "round");  // the clock, where there is one
  const paper = Object.keys(axes).filter(axis => axis !== chosen.axis);
  return [
    make("h2", {}, "Curves"),
    make("div", { class: "controls" }, buttons(scores, chosen.score, key => { chosen.score = key; }),
      buttons(axes, chosen.axis, key => { chosen.axis = key; }),
      buttons(PARTS, chosen.part, key => { chosen.part = key; })),
    legend(),
    make("div", { id: "curves" }, drawn(chosen.axis, size)),
    make("div", { class: "paper" }, ...paper.map(axis => drawn(axis, { width: 460, height: 270 }))),
    make("p", { class: "faint", id: "curve-words" }, `${yName}${chosen.score in { accuracy: 0, loss: 0 } ? doc.drawn : ""}: mean over seeds; the band spans the lowest and the highest seed.`),
  ];
}

function manyWidth(width) {
  const across = Math.max(1, Math.floor((width + 26) / (290 + 26)));
  return (width - 26 * (across - 1)) / across;
}

function manyPart(title, about, names, width, chart) {
  const pieces = names.map(name => ({ name, chart: chart(name, { width: manyWidth(width), height: 210 }) })).filter(piece => piece.chart);
  if (!pieces.length) return [];
  return [make("h2", {}, title), make("p", { class: "faint" }, about),
    make("div", { class: "many" }, ...pieces.map(piece => make("div", { class: "piece" }, make("h3", {}, piece.name), piece.chart)))];
}

function column(name, size) {
  const series = lines(name, "round");
  return series.length ? lineChart(series, { ...size, xName: "rounds", yName: name, label: `${name} over rounds` }) : null;
}

function spread(name, size) {
  const arm = doc.arms[indexOf(name)], i = indexOf(name);
  if (!shown(i)) return null;
  const source = arm.curves.lr_median ? arm : arm.running.find(run => run.curves.lr_median);
  if (!source) return null;
  const { lr_min, lr_median, lr_max } = source.curves;
  const joined = { ...lr_median, low: lr_min && lr_min.mean, high: lr_max && lr_max.mean };
  const points = points_of(joined, "round", { mean: "mean", low: "low", high: "high" });
  return lineChart([{ arm: i, name: "median step", points }], { ...size, xName: "rounds", yName: "step size", label: `step sizes of ${name}` });
}

function clientsPart(width) {
  const { participation, budgets, labels, accuracies } = doc.clients;
  const size = { width: width >= 866 ? (width - 26) / 2 : width, height: 240 };
  const reasons = new Set(Object.values(doc.clients).map(panel => panel.why));
  if (reasons.size === 1 && accuracies.why) return [make("h2", {}, "Clients"), make("p", { class: "why" }, accuracies.why)];
  const piece = (title, panel, about, picture) => make("div", { class: "piece" }, make("h3", {}, title),
    panel.why ? make("p", { class: "why" }, panel.why) : picture(), panel.why ? null : make("p", { class: "faint" }, about()));
  return [
    make("h2", {}, "Clients"),
    make("div", { class: "two" },
      piece("Accuracy of each client", accuracies, () => `The final models (${seedsOf(accuracies)}) on each client's own ` + (accuracies.held_out ? "test samples (client_test)" : "training data (not test data)")
        + ". Clients are sorted by accuracy,"
        + ` separately for each algorithm. Shown: ${accuracies.clients} of ${accuracies.of} clients, up to ${accuracies.samples} samples each.`
        + ` The worst tenth is ${accuracies.tenth} of these ${accuracies.clients} clients, in each seed by itself, and then the mean`
        + " over seeds; the curve sorts the clients' means, so it may begin higher.",
      () => make("div", {}, sortedAccuracies(accuracies, size), decileTable(accuracies))),
      piece("Labels by client", labels, () => `Darker cells are larger shares of the client's samples. A client holds ${range(labels.own[0], labels.own[2])} of`
        + ` ${labels.labels} labels${average(labels.own)}; ${labels.clients.toLocaleString("en")} clients`
        + (labels.columns.length < labels.clients ? `, in ${labels.columns.length} groups.` : "."), () => labelPicture(labels, size)),
      piece("Participation", participation, () => `How often a client took part (${participation.span}): ${range(participation.least, participation.most)}`
        + ` times${average([participation.least, participation.mean, participation.most])}; ${participation.never} of ${participation.clients.toLocaleString("en")} never did.`
        + " Recomputed from the configuration; with the same seed it is the same for every arm.",
      () => bars(participation, { ...size, xName: "rounds taken part in", yName: "clients" })),
      piece("Budgets", budgets, () => `Local steps that participants could do with the budget ${budgets.budget} (${budgets.span}). Recomputed from the configuration.`
        + (budgets.planned && doc.columns.tuned.includes("epochs") ? " Algorithms that tune their epochs use their own number of steps instead." : ""),
      () => bars(budgets, { ...size, xName: "steps", yName: "participations" }))),
    ...lowestPart(accuracies),
  ];
}

const range = (low, high) => low === high ? `${low}` : `${low} to ${high}`;
const average = ([low, mean, high]) => low === high ? "" : `, ${mean.toFixed(1)} on average`;

function seedsOf(panel) {
  const counts = panel.arms.filter(arm => !arm.why).map(arm => arm.seeds), most = Math.max(1, ...counts);
  return most === 1 ? "one seed" : `means over ${range(Math.min(...counts), most)} seeds`;
}

function lowestPart(panel) {
  if (panel.why || !panel.table.length) return [];
  const kind = panel.held_out ? "test" : "training";
  const rows = panel.table.map(({ name, samples, values }) => ({ name, before: [samples.toLocaleString("en")],
    cells: values.map(value => value === null ? "–" : value.toFixed(3)) }));
  const some = rows.length < panel.clients ? `The ${rows.length} lowest of ${panel.clients} clients` : `All ${panel.clients} clients`;
  return [make("h3", { class: "apart" }, "Accuracy by client, the lowest first"), armTable("lowest", "client", [`${kind} rows`], rows),
    make("p", { class: "faint" }, `${some}, in the order of the mean over algorithms; ${seedsOf(panel)}, on so many of the client's own ${kind} rows.`)];
}

function decileTable(panel) {
  const rows = panel.arms.map((arm, i) => ({ arm: i, name: doc.arms[i].name,
    cells: arm.why ? [arm.why, "", "", ""] : [arm.worst, arm.median, arm.mean, arm.spread].map(v => v.toFixed(3)) }));
  return table(["worst tenth", "median", "mean", "spread"], rows, "clients' accuracy");
}

function settingsPart() {
  const { shared, arms } = doc.configuration;
  return [
    make("h2", {}, "Configuration and environment"),
    make("h3", {}, "All runs"), keys(shared),
    ...arms.flatMap((arm, i) => [make("h3", {}, dot(i), arm.name), keys({ seeds: arm.seeds.join(", "), algorithm: arm.algorithm, folder: arm.place, ...arm.own })]),
    ...doc.environment.flatMap(known => [make("h3", {}, "Environment"), keys(known)]),
    make("p", { class: "faint" }, `Made by fedkeel ${doc.fedkeel}, ${doc.made}. This file holds all its data and fetches nothing.`),
  ];
}

// Downloads

const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font", "visibility"];

function addDownloads() {
  const offer = (after, k, kind, name, text) => after.after(make("p", { class: "save" }, make("button", { id: `save-${kind}-${k}`,
    title: `save as ${name}.${kind}`, onclick: () => saveFile(`${name}.${kind}`, text(), kind === "svg" ? "image/svg+xml" : "text/csv") }, kind.toUpperCase())));
  const named = text => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "fedkeel";
  [...page.querySelectorAll(".chart")].filter(chart => !chart.closest(".paper")).forEach((chart, k) =>
    offer(chart, k, "svg", named(chart.querySelector("svg").getAttribute("aria-label")), () => standalone(chart)));
  page.querySelectorAll("table").forEach((table, k) => offer(table, k, "csv", `table-${k + 1}`, () => asCsv(table)));
}

// The chart with its look written into every element, on the page's ground, and with the names of its curves below.
function standalone(chart) {
  const svg = chart.querySelector("svg"), copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const copies = [...copy.querySelectorAll("*")];
  [...svg.querySelectorAll("*")].forEach((node, k) => {
    const look = getComputedStyle(node);
    copies[k].removeAttribute("class");
    copies[k].setAttribute("style", LOOK.map(name => `${name}:${look.getPropertyValue(name)}`).join(";"));
  });
  copies.filter(node => node.style.visibility === "hidden").forEach(node => node.remove());
  const style = getComputedStyle(document.body), names = new Map((chart.series || []).map(one => [one.arm, one.name]));
  const colour = i => style.getPropertyValue(`--arm-${i % COLOURS}`).trim();
  [...names].forEach(([arm, name], k) => {
    const y = height + 10 + 18 * k;
    copy.append(make("line", { x1: 12, x2: 38, y1: y, y2: y, "stroke-width": 3, stroke: colour(arm), "stroke-dasharray": armDash(arm) }),
      make("text", { x: 46, y: y + 4, style: `fill:${style.color};font:12px sans-serif` }, name));
  });
  const tall = height + (names.size ? 18 * names.size + 6 : 0);
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${tall}`, width, height: tall })) copy.setAttribute(name, value);
  copy.prepend(make("rect", { width, height: tall, fill: style.backgroundColor }));
  return new XMLSerializer().serializeToString(copy);
}

function asCsv(table) {
  const cell = node => `"${node.textContent.replaceAll("\u00a0", " ").replaceAll('"', '""')}"`;
  return [...table.querySelectorAll("tr")].map(row => [...row.children].map(cell).join(",")).join("\n") + "\n";
}

function saveFile(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The live page

let lost = false, asked = false, pressed = false, stale = false;

function livePart() {
  if (!doc.live) return [];
  const running = doc.runs.filter(run => run.status === "stopped");
  const state = lost ? "The process that serves this page has ended, so the page is no longer updated. fedkeel report writes it to a file."
    : asked && running.length ? "Asked to stop: the run ends after this round, with a checkpoint, and fedkeel resume continues it."
    : running.length ? "These runs have not ended:" : !doc.runs.length ? "No rows yet."
    : doc.waiting ? `The next run is starting; ${doc.waiting} of ${doc.runs.length + doc.waiting} have not begun.` : "All runs have ended.";
  const time = s => s === null ? "" : s >= 3600 ? `${(s / 3600).toFixed(1)} h` : s >= 60 ? `${Math.round(s / 60)} min` : `${Math.round(s)} s`;
  const line = run => make("div", { class: "line" }, `${run.name}, seed ${run.seed}: round ${run.round}`
    + (run.limit ? "" : ` of ${run.rounds}`)
    + (run.sim_seconds === undefined ? "" : `, ${plain(run.sim_seconds)}${run.limit ? ` of ${plain(run.limit)}` : ""} simulated s`)
    + (run.accuracy === null ? "" : `, accuracy ${run.accuracy.toFixed(4)} (best ${run.best.toFixed(4)})`)
    + (run.megabytes === null ? "" : `, ${plain(run.megabytes)} MB`) + (run.dropped ? `, ${run.dropped} dropped` : "")
    + (run.late ? `, ${run.late} late` : "") + (run.lost ? `, ${run.lost} lost` : "")
    + (run.pace === null ? "" : `, ${plain(run.pace)} rounds/s, ${time(run.left)} left`),
  make("progress", { max: 1, value: run.done }));
  const stop = make("button", { class: "stop", id: "stop", disabled: lost || asked, onclick: askToStop }, "Stop after this round");
  return [make("section", { class: "live", id: "live" }, make("p", { id: "state" }, state),
    doc.error ? make("p", { class: "warning" }, doc.error) : null, ...running.map(line), running.length ? stop : null)];
}

async function askToStop() {
  asked = true;
  draw();
  try { await fetch("stop", { method: "POST" }); } catch { lost = true; draw(); }
}

async function poll() {
  try {
    const answer = await fetch("data", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const before = doc.runs.filter(run => run.status === "stopped").map(run => `${run.name} ${run.seed}`).join();
    const next = await answer.json();
    const changed = JSON.stringify({ ...next, made: "" }) !== JSON.stringify({ ...doc, made: "" });
    doc = next;
    const after = doc.runs.filter(run => run.status === "stopped").map(run => `${run.name} ${run.seed}`).join();
    if (asked && before !== after) asked = false;
    stale = stale || changed || lost;
    lost = false;
    if (stale && !pressed) { stale = false; draw(); }  // a button that is replaced while it is pressed is not clicked
  } catch { if (!lost) { lost = true; draw(); } }
  setTimeout(poll, 2000);
}

function draw() {
  const focused = document.activeElement && document.activeElement.id;
  const width = Math.max(280, page.clientWidth - 32);
  const parts = doc.arms.length ? [
    ...verdictPart(), ...curvesPart(width), ...tablePart(),
    ...manyPart("Tuned while running", "Hyper-parameters that the algorithm changes during the run: mean over seeds, with a band from the lowest to the highest seed.", doc.columns.tuned, width, column),
    ...manyPart("Step sizes", "Clients choose their own step sizes: the median client, with a band from the smallest to the largest step; means over seeds.",
      doc.columns.spread.length ? doc.arms.filter(arm => [arm, ...arm.running].some(one => one.curves.lr_median)).map(arm => arm.name) : [], width, spread),
    ...clientsPart(width),
    ...morePart(width), ...settingsPart(),
  ] : [make("h1", {}, doc.task || "fedkeel"), make("p", { class: "headline" }, "Waiting for the first rows.")];
  page.replaceChildren(...livePart(), ...parts);
  addDownloads();
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
}

function morePart(width) {
  const names = [...doc.columns.more, ...doc.columns.spread.filter(name => name === "skipped")];
  const charts = manyPart("More columns", "The other columns of the histories, over rounds.", names, width, column);
  const same = Object.entries(doc.same).map(([name, value]) => `${name} = ${plain(value)}`);
  const fixed = Object.keys(doc.constant).length > 0;
  if (!charts.length && !fixed && !same.length) return [];
  return [
    ...(charts.length ? charts : [make("h2", {}, "More columns")]),
    ...(fixed ? [make("h3", { class: "apart" }, "Columns with one value for each algorithm"), valueTable(doc.constant),
      make("p", { class: "faint" }, "They do not change over rounds, or were measured in one round only. Means over seeds.")] : []),
    same.length ? make("p", { class: "faint" }, `The same in all rounds and algorithms: ${same.join(", ")}.`) : null,
  ].filter(part => part !== null);
}

for (const kind of ["pointerdown", "pointerup", "pointercancel"])
  addEventListener(kind, () => { pressed = kind === "pointerdown"; }, true);
let width = 0;
addEventListener("resize", () => { if (page.clientWidth !== width) { width = page.clientWidth; draw(); } });
draw();
if (doc.live) setTimeout(poll, 1000);
