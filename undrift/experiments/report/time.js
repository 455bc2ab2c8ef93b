"use strict";
// The plots of virtual time: the beginning of a run, and how stale its updates were; page.js lends its functions.
const timeCharts = ({ html, shape, ticks, digits, chooseUnit, format }, data) => {
  // the beginning of a run: one row per client

  const ROW = 17, BAR = 11, THIN = 4;
  const LOSSES = {
    "lost before": "lost before it computed", "lost after": "lost after it computed",
    left: "lost: the client left", late: "lost: too late",
  };
  const OUT = "still out";

  function describe(visit, s) {
    const { dispatched, begins, ends, returns } = visit;
    const lines = [`client ${visit.client}, sent out at ${s(dispatched)} with the model of step ${visit.version}`,
      `down ${s(begins - dispatched)}, computing ${s(ends - begins)} (${visit.steps} steps)`];
    if (visit.fate in LOSSES) return [...lines, `${LOSSES[visit.fate]}, at ${s(returns)}`].join("\n");
    if (visit.fate === OUT) return [...lines, `still out when the run ended, at ${s(returns)}`].join("\n");
    lines[1] += `, up ${s(returns - ends)}`;
    lines.push(visit.used === null ? `back at ${s(returns)}` : `back at ${s(returns)}, used at ${s(visit.used)}: waited ${s(visit.used - returns)}`);
    return lines.join("\n");
  }

  function bars(visit, until, x, middle, s) {
    const { dispatched, begins, ends, returns } = visit, lost = visit.fate in LOSSES;
    const group = shape("g", { class: lost ? "visit lost" : "visit" }, shape("title", {}, describe(visit, s)));
    const bar = (kind, from, to, tall) => {
      if (from < until && to > from) group.append(shape("rect", { class: kind, x: x(from), y: middle - tall / 2, width: Math.max(0.5, x(Math.min(to, until)) - x(from)), height: tall }));
    };
    const end = visit.used ?? returns;
    group.append(shape("rect", { class: "hit", x: x(dispatched), y: middle - ROW / 2, width: Math.max(2, x(Math.min(end, until)) - x(dispatched)), height: ROW }));
    bar("travel", dispatched, begins, THIN);
    bar("computing", begins, ends, BAR);
    bar("travel", ends, returns, THIN);
    if (visit.used !== null && visit.used > returns && returns < until)
      group.append(shape("line", { class: "waiting", x1: x(returns), x2: x(Math.min(visit.used, until)), y1: middle, y2: middle }));
    if (lost && returns <= until) group.append(cross(x(returns), middle));
    else if (visit.used !== null && visit.used <= until) group.append(shape("circle", { class: "used", cx: x(visit.used), cy: middle, r: 2.4 }));
    return group;
  }
  const cross = (x, y, r = 4) => shape("path", { class: "loss", d: `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}` });

  function gantt(place, { label, until, clients, others, visits, steps }) {
    const width = Math.max(280, place.clientWidth), narrow = width < 640, left = 46, right = 14, top = 30;
    const below = top + clients.length * ROW, height = below + 40;
    const x = (v) => left + (v / (until || 1)) * (width - left - right);
    const s = (v) => format("seconds", v, Math.max(v, 1e-3));
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": `What ${clients.length} clients did in the first ${s(until)} of ${label}: ${visits.length} visits, ${steps.length} steps of the server` });
    clients.forEach((client, row) => {
      if (row % 2 === 0) svg.append(shape("rect", { class: "stripe", x: left, y: top + row * ROW, width: width - left - right, height: ROW }));
      svg.append(shape("text", { x: left - 8, y: top + (row + 0.5) * ROW + 4, "text-anchor": "end" }, String(client)));
    });
    svg.append(shape("text", { x: left - 8, y: 12, "text-anchor": "end" }, "client"));
    svg.append(shape("text", { x: left, y: 12 }, "server step"));
    const room = (width - left - right) / 34, every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((k) => steps.length <= k * room) ?? 1000;
    let free = left + 76; // where the next number of a step may begin
    for (const [moment, number] of steps) {
      svg.append(shape("line", { class: "step", x1: x(moment), x2: x(moment), y1: top - 8, y2: below }, shape("title", {}, `step ${number} of the server at ${s(moment)}`)));
      const half = 3.6 * String(number).length;
      if (number % every || x(moment) - half < free || x(moment) + half > width) continue;
      svg.append(shape("text", { class: "number", x: x(moment), y: 12, "text-anchor": "middle" }, String(number)));
      free = x(moment) + half + 6;
    }
    for (const visit of visits) svg.append(bars(visit, until, x, top + (clients.indexOf(visit.client) + 0.5) * ROW, s));
    const [size] = chooseUnit("seconds", until);
    for (const v of ticks(0, until / size || 1, narrow ? 4 : 8))
      svg.append(shape("text", { x: x(v * size), y: below + 16, "text-anchor": "middle" }, format("seconds", v * size, until)));
    svg.append(shape("text", { x: left + (width - left - right) / 2, y: height - 4, "text-anchor": "middle" },
      `virtual time${others ? `; ${others} other client${others > 1 ? "s" : ""} asked by then` : ""}`));
    place.replaceChildren(svg);
    legend(document.getElementById("keys"));
  }

  function legend(place) {
    const key = (name, ...marks) => html("span", {}, shape("svg", { class: "key", viewBox: "0 0 26 14", "aria-hidden": "true" }, ...marks), name);
    const bar = (kind, tall) => shape("rect", { class: kind, x: 1, y: 7 - tall / 2, width: 24, height: tall });
    place.replaceChildren(
      key("message on its way, down or up", bar("travel", THIN)), key("computing", bar("computing", BAR)),
      key("update waits for the server, and is used", shape("line", { class: "waiting", x1: 1, x2: 21, y1: 7, y2: 7 }), shape("circle", { class: "used", cx: 23, cy: 7, r: 2.4 })),
      key("computed, but lost", shape("g", { class: "lost" }, bar("computing", BAR), cross(24, 7))),
      key("the server steps", shape("line", { class: "step", x1: 13, x2: 13, y1: 0, y2: 14 })));
  }

  // staleness

  const highest = Math.max(0, ...data.staleness.flatMap((each) => each.shares)) || 1;
  function staleness(place, { label, edges, tail, shares, colour }) {
    const width = place.clientWidth, height = 132, left = 44, right = 14, top = 8, below = 34;
    const wide = Math.min(34, (width - left - right) / edges.length), y = (v) => top + (1 - v / highest) * (height - top - below);
    const svg = shape("svg", { class: `c${colour}`, viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Shares of ${label}'s updates by staleness` });
    for (const v of ticks(0, highest, 4)) {
      svg.append(shape("line", { class: "grid", x1: left, x2: left + edges.length * wide, y1: y(v), y2: y(v) }));
      svg.append(shape("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, `${digits(100 * v)} %`));
    }
    const every = Math.ceil(22 / wide);
    edges.forEach((edge, i) => {
      const last = i === edges.length - 1, next = edges[i + 1] ?? edge + (edges[1] ?? 1) - edges[0];
      const name = last && tail ? `${edge}+` : next - edge > 1 ? `${edge}–${next - 1}` : String(edge);
      svg.append(shape("rect", { x: left + i * wide + 1, y: y(shares[i]), width: Math.max(1, wide - 2), height: y(0) - y(shares[i]) },
        shape("title", {}, `staleness ${name}: ${(100 * shares[i]).toFixed(1)} % of the updates`)));
      const middle = next - edge > 1 && !(last && tail) ? 0 : 0.5; // a bar of several numbers begins at its label
      if (last && tail || i % every === 0 && (!tail || edges.length - 1 - i >= every))
        svg.append(shape("text", { x: left + (i + middle) * wide, y: height - below + 15, "text-anchor": "middle" }, last && tail ? name : String(edge)));
    });
    svg.append(shape("text", { x: left, y: height - 3 }, "server steps since the model was sent"));
    place.replaceChildren(svg);
  }

  const choice = document.getElementById("first");
  if (choice) {
    const place = document.getElementById("gantt");
    choice.append(...data.gantt.map(({ label, seed }, i) => html("option", { value: i }, `${label}, seed ${seed}`)));
    choice.addEventListener("change", () => { gantt(place, data.gantt[place.dataset.index = choice.value]); });
    document.querySelector("#time .controls").hidden = data.gantt.length < 2;
  }
  return { gantt, staleness };
};
