// Draws the plots from the data embedded in the page, and sorts its tables.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { metric: findMetric(data.metric), axis: data.axes[0], log: false, hidden: new Set(), at: null };
  function findMetric(name) { return data.metrics.find((metric) => metric.name === name); }
  const spell = (name) => name.replaceAll("_", " ");
  const buttonName = (axis) => axis.label.split(",")[0];

  // elements; text is always text, never markup

  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const shape = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // numbers as people read them

  const UNITS = {
    bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
    seconds: [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]],
    count: [[1, ""]],
  };
  const digits = (v) => String(Number(v.toPrecision(4)));
  const chooseUnit = (kind, largest) => UNITS[kind].find(([size]) => largest >= 2 * size) ?? UNITS[kind].at(-1);
  function format(kind, value, largest = value) {
    if (kind === "count") return Math.round(value).toLocaleString("en");
    const [size, unit] = chooseUnit(kind, largest);
    return `${digits(value / size)} ${unit}`;
  }
  function formatMetric(metric, value) {
    if (metric.share) return `${(100 * value).toFixed(2)} %`;
    return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(2) : digits(value);
  }

  // scales

  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step || 0); // no -0
    return found;
  }
  function logTicks(low, high) {
    const found = [], decades = Math.log10(high / low);
    const steps = decades > 6 ? [1] : decades > 2 ? [1, 3] : [1, 2, 5];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++)
      for (const m of steps) if (m * 10 ** e >= low * 0.999 && m * 10 ** e <= high * 1.001) found.push(m * 10 ** e);
    return found.length > 1 ? found : ticks(low, high, 4);
  }

  // the curves

  const chart = document.getElementById("chart");
  const tip = html("div", { class: "tip", hidden: "" });
  let plot = null; // what the last drawing knows, for the read-out

  const visible = () => data.methods.filter((m) => !state.hidden.has(m.label) && m.metrics[state.metric.name]);
  const finite = (values) => values.filter((v) => v !== null && Number.isFinite(v));

  function range(methods, metric) {
    const all = methods.flatMap((m) => Object.values(m.metrics[metric.name]).flatMap(finite));
    const goals = metric.name === data.metric ? [data.target, data.quality, ...data.references.map((r) => r.value)].filter((v) => v !== null) : [];
    let low = Math.min(...all, ...goals), high = Math.max(...all, ...goals);
    if (!all.length) [low, high] = [0, 1];
    const possible = low > 0 && !metric.share;
    if (possible && state.log) return { low: low / 1.05, high: high * 1.05 + (low === high ? 1 : 0), log: true, possible };
    const room = (high - low || Math.abs(high) || 1) * 0.04;
    const floor = !metric.share && low >= 0 ? 0 : -Infinity; // nothing below zero where nothing can be
    return { low: Math.max(floor, low - room), high: metric.share ? Math.min(1, high + room) : high + room, log: false, possible };
  }

  function path(xs, ys, x, y, from, to) {
    let d = "", pen = false;
    for (let i = from; i < to; i++) {
      const there = xs[i] !== null && ys[i] !== null;
      if (there) d += `${pen ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      pen = there;
    }
    return d;
  }
  function band(xs, low, high, x, y) {
    const there = xs.map((_, i) => i).filter((i) => xs[i] !== null && low[i] !== null && high[i] !== null);
    const point = (i, values) => `${x(xs[i]).toFixed(1)} ${y(values[i]).toFixed(1)}`;
    const top = there.map((i) => point(i, high)), bottom = there.map((i) => point(i, low)).reverse();
    return there.length > 1 ? `M${[...top, ...bottom].join("L")}Z` : "";
  }

  function draw() {
    const { metric, axis } = state, methods = visible();
    const width = Math.max(280, chart.clientWidth), narrow = width < 640;
    const height = narrow ? 300 : 420;
    const longest = Math.max(0, ...methods.map((m) => m.label.length));
    const named = !narrow && methods.length <= 12;
    const margin = { top: 12, right: named ? Math.min(190, 24 + 7 * longest) : 14, bottom: 44, left: narrow ? 46 : 58 };
    const r = range(methods, metric);
    const log = document.getElementById("log");
    log.disabled = !r.possible;
    const last = Math.max(...methods.map((m) => Math.max(0, ...finite(m[axis.name]))), 0) || 1;
    const first = axis.name === "rounds" ? Math.min(...methods.map((m) => m.rounds[0]), last - 1) : 0;
    const inner = width - margin.left - margin.right, tall = height - margin.top - margin.bottom;
    const x = (v) => margin.left + ((v - first) / (last - first || 1)) * inner;
    const f = r.log ? Math.log : (v) => v;
    const y = (v) => margin.top + (1 - (f(v) - f(r.low)) / (f(r.high) - f(r.low))) * tall;

    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0",
      "aria-label": `${spell(metric.name)} against ${buttonName(axis)}: ${methods.map((m) => m.label).join(", ")}. Arrow keys move the read-out.` });
    for (const v of r.log ? logTicks(r.low, r.high) : ticks(r.low, r.high, narrow ? 4 : 6)) {
      svg.append(shape("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(v), y2: y(v) }));
      const text = metric.share ? `${digits(100 * v)} %` : digits(v);
      svg.append(shape("text", { x: margin.left - 8, y: y(v) + 4, "text-anchor": "end" }, text));
    }
    const [size] = chooseUnit(axis.unit, last);
    const marks = ticks(first / size, last / size, narrow ? 4 : 8);
    for (const v of axis.name === "rounds" ? marks.filter(Number.isInteger) : marks) // there is no round 2.5
      svg.append(shape("text", { x: x(v * size), y: height - margin.bottom + 20, "text-anchor": "middle" }, format(axis.unit, v * size, last)));
    svg.append(shape("text", { x: margin.left + inner / 2, y: height - 4, "text-anchor": "middle" }, axis.label));
    for (const m of methods) svg.append(lines(m, metric, x, y));
    if (metric.name === data.metric) goals(svg, margin, width, y, metric);
    if (named) names(svg, methods, metric, x, y, margin, height);
    const cross = shape("g", { class: "reading", visibility: "hidden" });
    svg.append(cross);
    chart.replaceChildren(svg, tip);
    plot = { svg, cross, x, y, first, last, margin, width, height, inner, metric, methods };
    svg.addEventListener("pointermove", (e) => read(valueAt(e)));
    svg.addEventListener("pointerdown", (e) => read(valueAt(e)));
    svg.addEventListener("pointerleave", () => read(null));
    svg.addEventListener("blur", () => read(null));
    svg.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (!step) return;
      e.preventDefault();
      read(Math.min(last, Math.max(first, (state.at ?? first) + (step * (last - first)) / 50)));
    });
    read(null);
  }

  function goals(svg, margin, width, y, metric) {
    const marks = data.target === null ? [[data.quality, `${data.baseline}'s final`]] : [[data.target, "target"]];
    marks.push(...data.references.map((r) => [r.value, r.label]));
    for (const [i, [value, name]] of marks.entries()) {
      if (value === null) continue;
      svg.append(shape("line", { class: "goal", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }));
      svg.append(shape("text", { class: "halo", x: margin.left + 6 + 150 * i, y: y(value) - 5 }, `${name} ${formatMetric(metric, value)}`));
    }
  }

  function lines(m, metric, x, y) {
    const xs = m[state.axis.name], { mean, low, high } = m.metrics[metric.name];
    const group = shape("g", { class: `method c${m.colour}` });
    group.dataset.label = m.label;
    if (m.seeds > 1) group.append(shape("path", { class: "band", d: band(xs, low, high, x, y) }));
    const dash = data.dashes[m.dash];
    group.append(shape("path", { class: "curve", d: path(xs, mean, x, y, 0, m.common), "stroke-dasharray": dash }));
    if (m.common < xs.length)
      group.append(shape("path", { class: "curve rest", d: path(xs, mean, x, y, Math.max(0, m.common - 1), xs.length), "stroke-dasharray": dash }));
    if (xs.length === 1 && mean[0] !== null) group.append(shape("circle", { class: "dot", cx: x(xs[0]), cy: y(mean[0]), r: 4 }));
    return group;
  }

  // names at the ends of the lines, moved apart where they would overlap
  function names(svg, methods, metric, x, y, margin, height) {
    const ends = methods.flatMap((m) => {
      const values = m.metrics[metric.name].mean, xs = m[state.axis.name];
      const i = values.findLastIndex((value, k) => value !== null && xs[k] !== null);
      return i < 0 ? [] : [{ m, at: x(xs[i]), y: y(values[i]) }];
    }).sort((a, b) => a.at - b.at);
    const columns = []; // of names that stand above each other
    for (const end of ends) {
      const column = columns[columns.length - 1];
      if (column && end.at - column[0].at < 100) column.push(end);
      else columns.push([end]);
    }
    columns.forEach((column) => spaced(column, 15, margin.top + 4, height - margin.bottom - 4));
    for (const e of ends) {
      const label = e.m.label.length > 24 ? `${e.m.label.slice(0, 23)}…` : e.m.label;
      const group = shape("g", { class: `method c${e.m.colour}` }, shape("text", { class: "end halo", x: e.at + 16, y: e.place + 4 }, label));
      if (Math.abs(e.place - e.y) > 2) group.prepend(shape("path", { class: "leader", d: `M${e.at + 3} ${e.y}L${e.at + 13} ${e.place}` }));
      group.dataset.label = e.m.label;
      svg.append(group);
    }
  }
  // places at least a gap apart, as near as can be to where things are: neighbours that collide share their mean
  function spaced(things, gap, top, bottom) {
    const groups = [];
    for (const thing of [...things].sort((a, b) => a.y - b.y)) {
      let group = { members: [thing], middle: thing.y };
      for (let above = groups[groups.length - 1]; above && reach(above, 1) + gap > reach(group, -1); above = groups[groups.length - 1]) {
        groups.pop();
        const members = [...above.members, ...group.members];
        group = { members, middle: members.reduce((sum, m) => sum + m.y, 0) / members.length };
      }
      groups.push(group);
    }
    function reach(group, side) {
      const half = ((group.members.length - 1) * gap) / 2;
      return Math.min(bottom - half, Math.max(top + half, group.middle)) + side * half;
    }
    for (const group of groups) group.members.forEach((thing, i) => { thing.place = reach(group, -1) + i * gap; });
  }

  // the read-out

  function valueAt(event) {
    const box = plot.svg.getBoundingClientRect();
    const part = ((event.clientX - box.left) * (plot.width / box.width) - plot.margin.left) / plot.inner;
    return part < -0.02 || part > 1.02 ? null : plot.first + Math.min(1, Math.max(0, part)) * (plot.last - plot.first);
  }
  function nearest(m, value) {
    const xs = m[state.axis.name], mean = m.metrics[plot.metric.name].mean;
    let best = null;
    xs.forEach((v, i) => {
      if (v !== null && mean[i] !== null && (best === null || Math.abs(v - value) < Math.abs(xs[best] - value))) best = i;
    });
    const beyond = best !== null && value > xs[best] + (plot.last - plot.first) / 100 && best === xs.length - 1;
    return beyond ? null : best;
  }
  function read(value) {
    state.at = value;
    tip.hidden = value === null;
    plot.cross.setAttribute("visibility", value === null ? "hidden" : "visible");
    if (value === null) return;
    const { metric, x, y, margin, height } = plot, { axis } = state;
    const found = plot.methods.map((m) => ({ m, i: nearest(m, value) })).filter((f) => f.i !== null)
      .map(({ m, i }) => ({ m, i, mean: m.metrics[metric.name].mean[i], low: m.metrics[metric.name].low[i], high: m.metrics[metric.name].high[i] }))
      .sort((a, b) => (metric.higher ? b.mean - a.mean : a.mean - b.mean));
    plot.cross.replaceChildren(
      shape("line", { class: "cross", x1: x(value), x2: x(value), y1: margin.top, y2: height - margin.bottom }),
      ...found.map((f) => shape("circle", { class: `dot c${f.m.colour}`, r: 4, cx: x(f.m[axis.name][f.i]), cy: y(f.mean) })));
    const head = (axis.name === "rounds" ? "round " : "") + format(axis.unit, value, plot.last);
    tip.replaceChildren(html("b", {}, head), ...found.map((f) => html("div", {}, swatch(f.m), html("span", {}, f.m.label),
      html("span", {}, formatMetric(metric, f.mean) + (f.m.seeds > 1 ? `  (${formatMetric(metric, f.low)} to ${formatMetric(metric, f.high)})` : "")))));
    const scale = chart.clientWidth / plot.width, at = x(value) * scale;
    tip.style.left = at < chart.clientWidth / 2 ? `${at + 14}px` : `${Math.max(0, at - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${margin.top}px`;
  }
  const swatch = (m) => shape("svg", { class: `swatch c${m.colour}`, viewBox: "0 0 22 8", "aria-hidden": "true" },
    shape("line", { x1: 1, x2: 21, y1: 4, y2: 4, "stroke-dasharray": data.dashes[m.dash] }));

  // the controls

  function controls() {
    const metrics = document.getElementById("metric"), axes = document.getElementById("axis"), log = document.getElementById("log");
    metrics.append(...data.metrics.map(({ name }) => html("option", { value: name }, spell(name))));
    metrics.value = state.metric.name;
    state.log = log.checked = state.metric.log;
    metrics.addEventListener("change", () => {
      state.metric = findMetric(metrics.value);
      state.log = log.checked = state.metric.log;
      draw();
    });
    for (const axis of data.axes) {
      const radio = html("input", { type: "radio", name: "axis", value: axis.name });
      radio.checked = axis === state.axis;
      radio.addEventListener("change", () => { state.axis = axis; draw(); });
      axes.append(html("label", {}, radio, buttonName(axis)));
    }
    log.addEventListener("change", () => { state.log = log.checked; draw(); });
    document.querySelector(".controls").hidden = false;
    document.getElementById("legend").append(...data.methods.map((m) => {
      const button = html("button", { type: "button", "aria-pressed": "true" }, swatch(m), html("span", {}, m.label));
      button.addEventListener("click", () => {
        const hide = !state.hidden.has(m.label);
        state.hidden[hide ? "add" : "delete"](m.label);
        button.setAttribute("aria-pressed", String(!hide));
        draw();
      });
      const alone = (on) => document.querySelectorAll("#chart .method").forEach((g) => g.classList.toggle("faded", on && g.dataset.label !== m.label));
      button.addEventListener("pointerenter", () => alone(!state.hidden.has(m.label)));
      button.addEventListener("pointerleave", () => alone(false));
      return button;
    }));
    const theme = document.getElementById("theme");
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const root = document.documentElement, dark = root.dataset.theme
        ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    });
    addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  }

  // the table

  function sortable(table) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")], body = table.tBodies[0];
    const keyed = (row, column) => {
      const text = row.cells[column].dataset.value;
      return text === "" ? null : column && !Number.isNaN(Number(text)) ? Number(text) : text;
    };
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"); // the first click puts the best first
      const down = now === "none" ? head.dataset.best === "descending" : now === "ascending";
      heads.forEach((h) => h.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => ({ row, key: keyed(row, column) }));
      rows.sort((a, b) => {
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null); // what is not there comes last
        const order = a.key < b.key ? -1 : Number(a.key > b.key);
        return down ? -order : order;
      });
      body.append(...rows.map((r) => r.row));
    }));
  }

  // the federations

  function heat(place, { shares, together }) {
    const clients = shares.length, labels = shares[0].length, left = 30, below = 20;
    const wide = Math.min(24, (place.clientWidth - left) / clients), tall = Math.max(4, Math.min(18, 260 / labels));
    const gap = wide > 4 ? 0.6 : 0, height = labels * tall + below;
    const svg = shape("svg", { viewBox: `0 0 ${place.clientWidth} ${height}`, height, role: "img",
      "aria-label": `Shares of ${labels} labels of ${clients} clients` });
    svg.append(shape("rect", { class: "ground", x: left, y: 0, width: clients * wide, height: labels * tall }));
    shares.forEach((row, i) => row.forEach((share, label) => {
      if (share) svg.append(shape("rect", { x: left + i * wide, y: label * tall, width: wide - gap, height: tall - gap,
        "fill-opacity": (0.1 + 0.9 * (share / 100) ** 0.8).toFixed(2) },
        shape("title", {}, `label ${label * together}${together > 1 ? " and next" : ""}: ${share} % of a client's samples`)));
    }));
    for (let label = 0; label < labels; label += Math.ceil(14 / tall))
      svg.append(shape("text", { x: left - 6, y: (label + 0.5) * tall + 4, "text-anchor": "end" }, String(label * together)));
    svg.append(shape("text", { x: left + (clients * wide) / 2, y: height - 4, "text-anchor": "middle" }, "clients"));
    place.replaceChildren(svg);
  }

  function sizes(place, { counts, edges }) {
    const width = place.clientWidth, height = 220, left = 34, right = 12, below = 36;
    const most = Math.max(...counts), low = edges[0], high = edges[edges.length - 1];
    const x = (v) => left + ((v - low) / (high - low)) * (width - left - right), y = (v) => 8 + (1 - v / most) * (height - below - 8);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Histogram of samples per client" });
    for (const v of ticks(0, most, 4).filter(Number.isInteger)) {
      svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      svg.append(shape("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, v.toLocaleString("en")));
    }
    counts.forEach((count, i) => svg.append(shape("rect", { x: x(edges[i]) + 0.5, y: y(count), width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 1), height: y(0) - y(count) },
      shape("title", {}, `${count} clients with ${digits(edges[i])} to ${digits(edges[i + 1])} samples`))));
    for (const v of ticks(low, high, 5))
      svg.append(shape("text", { x: x(v), y: height - below + 16, "text-anchor": "middle" }, v.toLocaleString("en")));
    svg.append(shape("text", { x: left + (width - left - right) / 2, y: height - 3, "text-anchor": "middle" }, "samples per client"));
    place.replaceChildren(svg);
  }

  // the metrics of the theory: small pictures, a line a method

  function theory(place, { name, against, log, lines }) {
    const width = place.clientWidth, height = 190, left = 52, right = 8, below = 34, top = 8;
    const all = (key) => lines.flatMap((line) => line[key]);
    const first = Math.min(...all("x")), last = Math.max(...all("x"));
    const least = Math.min(...all("y")), most = Math.max(...all("y"));
    const room = (most - least || Math.abs(most) || 1) * 0.06;
    const low = log ? least / 1.15 : Math.max(least >= 0 ? 0 : -Infinity, least - room), high = log ? most * 1.15 : most + room;
    const f = log ? Math.log : (v) => v;
    const x = (v) => left + ((v - first) / (last - first || 1)) * (width - left - right);
    const y = (v) => top + (1 - (f(v) - f(low)) / (f(high) - f(low))) * (height - below - top);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": `${spell(name)} against ${against}: ${lines.map((line) => line.label).join(", ")}` });
    const marks = log ? logTicks(low, high) : ticks(low, high, 4), every = Math.ceil(marks.length / 6);
    for (const v of marks.filter((_, i) => i % every === 0)) {
      svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      svg.append(shape("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, formatMetric({}, v)));
    }
    for (const v of last > first ? ticks(first, last, 4).filter(Number.isInteger) : [first])
      svg.append(shape("text", { x: x(v), y: height - below + 15, "text-anchor": "middle" }, v.toLocaleString("en")));
    svg.append(shape("text", { x: left + (width - left - right) / 2, y: height - 3, "text-anchor": "middle" }, against));
    for (const line of lines) {
      const group = shape("g", { class: `method c${line.colour}` }, shape("title", {}, line.label));
      if (line.x.length === 1) group.append(shape("circle", { class: "dot", cx: x(line.x[0]), cy: y(line.y[0]), r: 4 }));
      else group.append(shape("path", { class: "curve", d: path(line.x, line.y, x, y, 0, line.x.length), "stroke-dasharray": data.dashes[line.dash] }));
      svg.append(group);
    }
    place.replaceChildren(svg);
  }

  // everything; a new plot is a function here, an entry in charts.py and a place in page.html

  const CHARTS = { heat, sizes, theory, ...timeCharts({ html, shape, ticks, digits, chooseUnit, format }, data.charts) };
  function drawAll() {
    if (!chart.clientWidth) return; // nothing has a place yet: the observer below calls again
    draw();
    for (const place of document.querySelectorAll("[data-chart]")) {
      const { chart: name, index } = place.dataset;
      CHARTS[name](place, data.charts[name][index]);
    }
  }

  controls();
  drawAll();
  document.querySelectorAll("#table table, #time table").forEach(sortable);
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth !== width) { width = chart.clientWidth; drawAll(); }
  }).observe(chart);
})();
