"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const el = (id) => document.getElementById(id);
const canvas = el("canvas"), overview = el("overview"), chart = el("chart"), spacer = el("spacer");
const pen = canvas.getContext("2d"), small = overview.getContext("2d", { willReadFrequently: true });
const LABELS = 132, AXIS = 50, RIGHT = 12, MODEL = 35, PORT = 17, HEAD = 24;
const LENGTH = Math.max(data.length, 1000), SHORTEST = 100; // microseconds
const epoch = Date.parse(data.start || "1970-01-01T00:00:00Z"); // whole milliseconds
const below = data.start ? Number((data.start.match(/\.\d{3}(\d{3})/) || [0, 0])[1]) : 0;
const WAITING = new Set(["fetching", "queued"]), HATCHED = new Set(["draining", "stuck"]);
const TROUBLE = new Set(["crash", "failure", "stuck"]), SESSION = new Set(["opened", "closed", "killed"]);
const SAYS = {
  fetching: "fetching files", queued: "waiting for room", loading: "loading", ready: "ready",
  draining: "draining", stopping: "stopping", stuck: "stuck: could not be stopped",
};
const MARK_SAYS = {
  eviction: "eviction", undone: "eviction undone", crash: "exit by itself", failure: "failed run",
  stuck: "could not be stopped", blocked: "port taken by a stranger", adopted: "adopted",
  reaped: "stray process killed", opened: "service opened", closed: "service closed",
  killed: "opened after its owner vanished",
};

// --- what is drawn ---

const bars = data.bars.map((b, index) => {
  const spans = [];
  for (let i = 0; i < b[11].length; i += 3)
    spans.push({ state: data.states[b[11][i]], start: b[11][i + 1], end: b[11][i + 2] });
  const holding = spans.filter((s) => !WAITING.has(s.state));
  const longest = (holding.length ? holding : spans).reduce((a, s) => (s.end - s.start > a.end - a.start ? s : a));
  const main = spans.some((s) => s.state === "stuck") ? "stuck" : longest.state;
  return {
    main, index, run: b[0], model: data.models[b[1]], ports: b[2], pid: b[3], held: b[4], ended: !!b[5],
    outcome: data.texts[b[6]], error: data.texts[b[7]], by: data.texts[b[8]], first: b[9], last: b[10],
    spans, start: spans[0].start, end: spans[spans.length - 1].end,
  };
});
const marks = data.marks.map((m) => ({
  kind: data.kinds[m[0]], at: m[1], seq: m[2], run: m[3], model: m[4] < 0 ? null : data.models[m[4]],
  port: m[5], text: data.texts[m[6]],
}));
const sessions = marks.filter((m) => SESSION.has(m.kind));
const allRows = [];

function makeRows() {
  const models = new Map(), ports = new Map();
  allRows.push({ kind: "head", label: `Models (${data.models.length})`, height: HEAD });
  for (const name of data.models) {
    const row = { kind: "model", label: name, height: MODEL, bars: [], marks: [] };
    models.set(name, row);
    allRows.push(row);
  }
  allRows.push({ kind: "head", label: `Ports (${data.ports.length})`, height: HEAD });
  for (const port of data.ports) {
    const row = { kind: "port", label: String(port), height: PORT, bars: [], marks: [] };
    ports.set(port, row);
    allRows.push(row);
  }
  for (const bar of bars) {
    models.get(bar.model).bars.push(bar);
    if (bar.held !== null) for (const port of bar.ports) ports.get(port).bars.push(bar);
  }
  for (const mark of marks) {
    if (SESSION.has(mark.kind)) continue;
    mark.row = (mark.kind === "blocked" && ports.get(mark.port)) || models.get(mark.model) || null;
    (mark.row ? mark.row.marks : sessions).push(mark); // of no row: at the top, on the axis
  }
  sessions.sort((a, b) => a.at - b.at);
  for (const row of allRows) {
    if (!row.bars) continue;
    if (row.kind === "port") row.bars.sort((a, b) => a.held - b.held);
    let last = -Infinity;
    row.ends = row.bars.map((bar) => (last = Math.max(last, bar.end)));
  }
}

let rows = [];
function place() {
  const wanted = el("filter").value.trim().toLowerCase();
  const fits = (bar) => bar.model.toLowerCase().includes(wanted);
  rows = allRows.filter((row) => !wanted || row.kind === "head"
    || (row.kind === "model" ? row.label.toLowerCase().includes(wanted) : row.bars.some(fits)));
  let top = 0;
  for (const row of rows) { row.top = top; top += row.height; }
  rows.total = top;
  rows.fits = wanted ? fits : null;
  resize();
}

// --- the view ---

const view = { start: 0, end: LENGTH, row: null, bar: null, mark: null };
let width = 0, height = 0, dirty = false, colours = {};
const X = (t) => LABELS + ((t - view.start) / (view.end - view.start)) * (width - LABELS - RIGHT);
const T = (x) => view.start + ((x - LABELS) / (width - LABELS - RIGHT)) * (view.end - view.start);

function show(start, end) {
  const span = Math.min(Math.max(end - start, SHORTEST), LENGTH);
  const middle = (start + end) / 2;
  const first = Math.min(Math.max(middle - span / 2, 0), LENGTH - span);
  view.start = first;
  view.end = first + span;
  draw();
}
function zoom(factor, around = (view.start + view.end) / 2) {
  const span = Math.min(Math.max((view.end - view.start) * factor, SHORTEST), LENGTH);
  const share = (around - view.start) / (view.end - view.start);
  show(around - span * share, around + span * (1 - share));
}
const move = (share) => {
  const by = (view.end - view.start) * share;
  const start = Math.min(Math.max(view.start + by, 0), LENGTH - (view.end - view.start));
  show(start, start + view.end - view.start);
};

function resize() {
  const scale = window.devicePixelRatio || 1;
  width = chart.clientWidth;
  height = chart.clientHeight;
  strip = null;
  for (const [c, w, h] of [[canvas, width, height], [overview, overview.clientWidth, 50]]) {
    c.width = Math.round(w * scale);
    c.height = Math.round(h * scale);
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  spacer.style.height = `${Math.max(height, rows.total + AXIS + 6)}px`;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  small.setTransform(scale, 0, 0, scale, 0, 0);
  draw();
}
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of ["paper", "ink", "soft", "line", "band", "accent", ...data.states, ...data.kinds])
    colours[name] = style.getPropertyValue(`--${name}`).trim() || style.getPropertyValue("--soft");
}
function draw() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(paint);
}

// --- painting ---

const api = { data, view, bars, marks, show, zoom, first: null, took: 0, narrow: 0, seen: 0, drawn: 0, summed: false };
window.moorageTimeline = api;

function paint() {
  dirty = false;
  const began = performance.now();
  api.narrow = api.seen = api.drawn = 0;
  api.summed = false;
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, width, height - AXIS);
  pen.clip();
  const scrolled = chart.scrollTop, ticks = findTicks();
  pen.fillStyle = colours.line;
  for (const tick of ticks) pen.fillRect(Math.round(tick.x), AXIS, 1, height - AXIS);
  const visible = rows.filter((row) => {
    const y = AXIS + row.top - scrolled;
    return y + row.height > AXIS && y < height;
  });
  for (const row of visible) paintRow(row, AXIS + row.top - scrolled);
  paintSessions();
  for (const row of visible) if (row.marks) paintMarks(row, AXIS + row.top - scrolled);
  for (const row of visible) paintLabel(row, AXIS + row.top - scrolled);
  pen.restore();
  paintAxis(ticks);
  paintOverview();
  tell();
  api.took = performance.now() - began;
  if (api.first === null) api.first = performance.now();
}

function firstVisible(row) {
  let low = 0, high = row.bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.ends[middle] < view.start) low = middle + 1; else high = middle;
  }
  return low;
}
function* visibleBars(row) {
  for (let i = firstVisible(row); i < row.bars.length; i++) {
    const bar = row.bars[i], start = row.kind === "port" ? bar.held : bar.start;
    if (start > view.end) return;
    if (bar.end >= view.start && (!rows.fits || rows.fits(bar))) yield bar;
  }
}

function paintRow(row, y) {
  if (row.kind === "head") {
    pen.fillStyle = colours.band;
    pen.fillRect(0, y, width, row.height);
    return;
  }
  if (row === view.row) {
    pen.fillStyle = colours.band;
    pen.fillRect(0, y, width, row.height);
  }
  pen.fillStyle = colours.line;
  pen.fillRect(LABELS, y + row.height - 1, width - LABELS, 1);
  pen.save();
  pen.beginPath();
  pen.rect(LABELS, y, width - LABELS - RIGHT + 1, row.height);
  pen.clip();
  const reached = {}; // the pixel that a state has painted already: one is enough for each
  let chosen = null;
  for (const bar of visibleBars(row)) {
    const from = X(row.kind === "port" ? bar.held : bar.start), long = X(bar.end) - from;
    if (row.kind === "model") {
      api.seen++;
      if (long < 1) api.narrow++;
    }
    if (bar === view.bar) chosen = bar;
    if (long < 2) { // one state stands for all of it
      const pixel = Math.floor(from);
      if (reached[bar.main] === pixel) continue;
      reached[bar.main] = pixel;
      paintSpan(row, bar.main, y, from, from + Math.max(long, 1), WAITING.has(bar.main));
      api.drawn++;
      continue;
    }
    for (const span of bar.spans) {
      if (span.end < view.start || span.start > view.end) continue;
      const waiting = WAITING.has(span.state);
      if (waiting && row.kind === "port") continue;
      const left = X(span.start), right = Math.max(X(span.end), left + 1);
      paintSpan(row, span.state, y, left, right, waiting);
      api.drawn++;
    }
  }
  if (chosen) {
    const left = X(row.kind === "port" ? chosen.held : chosen.start);
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left - 1, y + 1, Math.max(X(chosen.end) - left, 1) + 2, row.height - 3);
  }
  pen.restore();
}

function paintSpan(row, state, y, left, right, waiting) {
  const from = Math.max(left, LABELS - 4), w = Math.min(right, width) - from;
  const top = row.kind === "port" ? y + 3 : waiting ? y + 14 : y + 18;
  const h = row.kind === "port" ? row.height - 7 : waiting ? 3 : row.height - 22;
  pen.fillStyle = colours[state];
  pen.fillRect(from, top, w, h);
  if (!HATCHED.has(state) || w < 5) return;
  pen.save();
  pen.beginPath();
  pen.rect(from, top, w, h);
  pen.clip();
  pen.strokeStyle = colours.paper;
  pen.globalAlpha = 0.55;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let x = from - h; x < from + w; x += 6) { pen.moveTo(x, top + h); pen.lineTo(x + h, top); }
  pen.stroke();
  pen.restore();
}

// Marks of one kind that would cover each other become one with their number.
function clusters(list, near) {
  const found = [], open = {};
  for (const mark of list) {
    if (mark.at < view.start || mark.at > view.end) continue;
    const x = X(mark.at), last = open[mark.kind];
    if (last && x - last.from < near) { last.marks.push(mark); last.x = (last.from + x) / 2; }
    else found.push((open[mark.kind] = { kind: mark.kind, from: x, x, marks: [mark] }));
  }
  return found;
}
function rowClusters(row) {
  const fits = (m) => m.at >= view.start && m.at <= view.end && (!rows.fits || m.model === null || rows.fits(m));
  const list = row.marks.filter(fits), near = clusters(list, 16);
  return near.length * 15 > (width - LABELS - RIGHT) * 0.5 ? summed(list) : near;
}
// Where marks would cover each other all along a row, each part of it tells how many of which kind.
function summed(list) {
  const wide = 210, parts = new Map();
  for (const mark of list) {
    const part = Math.floor((X(mark.at) - LABELS) / wide);
    if (!parts.has(part)) parts.set(part, new Map());
    const kinds = parts.get(part);
    if (!kinds.has(mark.kind)) kinds.set(mark.kind, []);
    kinds.get(mark.kind).push(mark);
  }
  const found = [];
  for (const [part, kinds] of parts) {
    let x = LABELS + part * wide + 8;
    for (const kind of data.kinds) {
      if (!kinds.has(kind)) continue;
      found.push({ kind, x, from: x, marks: kinds.get(kind), counted: true });
      x += 18 + String(kinds.get(kind).length).length * 6.5;
    }
  }
  api.summed = true;
  return found;
}

function symbol(target, kind, x, y, size, colour) {
  target.fillStyle = target.strokeStyle = colour;
  target.lineWidth = 2;
  target.beginPath();
  if (kind === "eviction") { target.moveTo(x - size, y - size); target.lineTo(x + size, y - size); target.lineTo(x, y + size * 0.8); target.fill(); }
  else if (kind === "undone") { target.moveTo(x - size, y + size * 0.8); target.lineTo(x + size, y + size * 0.8); target.lineTo(x, y - size); target.closePath(); target.stroke(); }
  else if (kind === "crash") { target.moveTo(x - size, y - size); target.lineTo(x + size, y + size); target.moveTo(x + size, y - size); target.lineTo(x - size, y + size); target.stroke(); }
  else if (kind === "failure") { target.arc(x, y, size, 0, 7); target.moveTo(x - size * 0.7, y - size * 0.7); target.lineTo(x + size * 0.7, y + size * 0.7); target.stroke(); }
  else if (kind === "stuck") { target.fillRect(x - size, y - size, size * 2, size * 2); }
  else if (kind === "blocked") { target.moveTo(x, y - size); target.lineTo(x + size, y); target.lineTo(x, y + size); target.lineTo(x - size, y); target.fill(); }
  else if (SESSION.has(kind)) { target.moveTo(x, y - size); target.lineTo(x, y + size); if (kind !== "closed") { target.lineTo(x + size, y); target.lineTo(x, y - size + 1); } target.stroke(); if (kind === "killed") target.fill(); }
  else { target.arc(x, y, size * 0.8, 0, 7); target.fill(); }
}

function paintMarks(row, y) {
  pen.save();
  pen.beginPath();
  pen.rect(LABELS, y - 3, width - LABELS, row.height + 3);
  pen.clip();
  pen.font = "bold 10px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  const middle = y + (row.kind === "port" ? row.height / 2 - 0.5 : 7.5);
  let busy = -Infinity; // no number is written over another mark
  const found = rowClusters(row);
  found.forEach((one, i) => {
    if (row.kind === "port") {
      pen.fillStyle = colours.paper;
      pen.beginPath();
      pen.arc(one.x, middle, 6.5, 0, 7);
      pen.fill();
    }
    symbol(pen, one.kind, one.x, middle, 4.2, colours[one.kind]);
    if (one.counted || (one.marks.length > 1 && one.x + 6 > busy)) {
      const text = String(one.marks.length);
      const w = pen.measureText(text).width, next = found[i + 1];
      if (one.counted || !next || one.x + 7 + w < next.x - 5) {
        pen.fillStyle = colours.ink;
        pen.fillText(text, one.x + 7, middle + 0.5);
        busy = one.x + 7 + w;
      }
    }
  });
  pen.restore();
}

function paintLabel(row, y) {
  pen.fillStyle = row.kind === "head" || row === view.row ? colours.band : colours.paper;
  pen.fillRect(0, y, LABELS - 1, row.height);
  pen.fillStyle = colours.line;
  pen.fillRect(LABELS - 1, y, 1, row.height);
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.font = row.kind === "head" ? "600 12px system-ui, 'DejaVu Sans', sans-serif"
    : row.kind === "port" ? "11px ui-monospace, 'DejaVu Sans Mono', monospace" : "13px system-ui, 'DejaVu Sans', sans-serif";
  pen.fillStyle = row.kind === "port" ? colours.soft : colours.ink;
  let text = row.label;
  while (text.length > 2 && pen.measureText(text).width > LABELS - 18) text = `${text.slice(0, -2)}…`;
  pen.fillText(text, 8, y + row.height / 2);
}

function paintSessions() {
  for (const one of clusters(sessions, 3)) {
    pen.strokeStyle = one.kind === "killed" ? colours.crash : colours.soft;
    pen.setLineDash(one.kind === "closed" ? [2, 4] : [6, 3]);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(one.x) + 0.5, AXIS);
    pen.lineTo(Math.round(one.x) + 0.5, height);
    pen.stroke();
    pen.setLineDash([]);
  }
}

// --- time ---

const SECOND = 1e6, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const STEPS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5,
  SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY, 3650 * DAY];

function clock(t, digits = 6) {
  const whole = Math.floor((t + below) / 1000), rest = ((t + below) % 1000 + 1000) % 1000;
  const text = new Date(epoch + whole).toISOString();
  const micro = text.slice(20, 23) + String(Math.floor(rest)).padStart(3, "0");
  return { date: text.slice(0, 10), time: text.slice(11, 19) + (digits ? `.${micro.slice(0, digits)}` : "") };
}
function lasted(t) {
  if (t < 1e3) return `${Math.round(t)} µs`;
  if (t < SECOND) return `${(t / 1e3).toFixed(t < 1e4 ? 2 : 0)} ms`;
  if (t < MINUTE) return `${(t / SECOND).toFixed(2)} s`;
  if (t < HOUR) return `${Math.floor(t / MINUTE)} min ${Math.floor((t % MINUTE) / SECOND)} s`;
  if (t < DAY) return `${Math.floor(t / HOUR)} h ${Math.floor((t % HOUR) / MINUTE)} min`;
  return `${Math.floor(t / DAY)} d ${Math.floor((t % DAY) / HOUR)} h`;
}

function findTicks() {
  const wanted = ((view.end - view.start) / (width - LABELS - RIGHT)) * 96;
  const step = STEPS.find((one) => one >= wanted) || STEPS[STEPS.length - 1];
  const digits = step >= SECOND ? 0 : step >= 1e3 ? 3 : 6;
  const origin = (epoch % (DAY / 1e3)) * 1e3 + below; // the picture's start within its day
  const found = [];
  for (let n = Math.ceil((view.start + origin) / step); n * step - origin <= view.end; n++) {
    const t = n * step - origin, at = clock(t, digits);
    found.push({ x: X(t), date: at.date, text: step >= DAY ? "" : step >= MINUTE ? at.time.slice(0, 5) : at.time });
  }
  return found;
}
function paintAxis(ticks) {
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, AXIS);
  pen.fillStyle = colours.line;
  pen.fillRect(0, AXIS - 1, width, 1);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  pen.fillStyle = colours.soft;
  pen.fillText("UTC", 8, 30);
  let date = "", free = -Infinity;
  for (const tick of ticks) {
    pen.fillStyle = colours.line;
    pen.fillRect(Math.round(tick.x), AXIS - 15, 1, 15);
    const fits = (text) => tick.x + pen.measureText(text).width + 4 <= width;
    pen.fillStyle = colours.ink;
    if (fits(tick.text)) pen.fillText(tick.text, tick.x + 3, 30);
    if (tick.date === date || tick.x < free || !fits(tick.date)) continue;
    pen.fillStyle = tick.text ? colours.soft : colours.ink;
    pen.fillText(tick.date, tick.x + 3, tick.text ? 14 : 30);
    date = tick.date;
    free = tick.x + 84;
  }
  pen.save();
  pen.beginPath();
  pen.rect(LABELS - 1, 0, width - LABELS - RIGHT + 6, AXIS);
  pen.clip();
  for (const one of clusters(sessions, 8))
    symbol(pen, one.kind, one.x, AXIS - 8, 4, one.kind === "killed" ? colours.crash : SESSION.has(one.kind) ? colours.soft : colours[one.kind]);
  pen.restore();
}

// --- the strip above: ports held over the whole time ---

const steps = (() => {
  const changes = [];
  for (const bar of bars) {
    if (bar.held === null) continue;
    changes.push([bar.held, bar.ports.length]);
    if (bar.ended) changes.push([bar.end, -bar.ports.length]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  const found = [];
  let held = 0;
  for (const [at, by] of changes) {
    held += by;
    if (found.length && found[found.length - 1][0] === at) found[found.length - 1][1] = held;
    else found.push([at, held]);
  }
  return found;
})();
const most = Math.max(1, ...(steps.length < 5e4 ? steps.map((s) => s[1]) : [steps.reduce((a, s) => Math.max(a, s[1]), 1)]));
const OX = (t) => LABELS + (t / LENGTH) * (overview.clientWidth - LABELS - RIGHT);
const OT = (x) => ((x - LABELS) / (overview.clientWidth - LABELS - RIGHT)) * LENGTH;

let strip = null; // as painted without the view; the same until size or colours change
function paintOverview() {
  const w = overview.clientWidth, h = 50;
  if (!strip) { paintStrip(w, h, h - 12); strip = small.getImageData(0, 0, overview.width, overview.height); }
  else small.putImageData(strip, 0, 0);
  const left = OX(view.start), right = OX(view.end);
  small.fillStyle = colours.ink;
  small.globalAlpha = 0.12;
  small.fillRect(LABELS, 0, left - LABELS, h);
  small.fillRect(right, 0, w - RIGHT - right, h);
  small.globalAlpha = 1;
  small.strokeStyle = colours.accent;
  small.lineWidth = 1.5;
  small.strokeRect(left, 1, Math.max(right - left, 2), h - 2);
}
function paintStrip(w, h, base) {
  small.fillStyle = colours.paper;
  small.fillRect(0, 0, w, h);
  small.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  small.fillStyle = colours.soft;
  small.fillText(`ports held, at most ${most}`, 8, 16);
  const pixels = Math.max(1, Math.floor(w - LABELS - RIGHT)), peak = new Float64Array(pixels + 1);
  let held = 0, i = 0;
  for (let p = 0; p <= pixels; p++) { // the most in each pixel: no peak is lost
    peak[p] = held;
    const until = OT(LABELS + p + 1);
    for (; i < steps.length && steps[i][0] < until; i++) peak[p] = Math.max(peak[p], (held = steps[i][1]));
  }
  small.fillStyle = colours.ready;
  for (let p = 0; p < pixels; p++) {
    const tall = (peak[p] / most) * (base - 6);
    small.fillRect(LABELS + p, base - tall, 1, tall);
  }
  const painted = {};
  for (const mark of marks) {
    const trouble = TROUBLE.has(mark.kind) || mark.kind === "killed";
    if (!trouble && mark.kind !== "eviction") continue;
    const x = Math.round(OX(mark.at)), key = `${trouble}${x}`;
    if (painted[key]) continue;
    painted[key] = true;
    small.fillStyle = trouble ? colours.crash : colours.soft;
    small.fillRect(x, trouble ? h - 6 : h - 11, 1, 4);
  }
}

// --- words ---

function tell() {
  const from = clock(view.start, 3), to = clock(view.end, 3);
  const narrow = api.narrow ? ` Runs shown that are narrower than a pixel: ${api.narrow.toLocaleString("en")}; zoom in to tell them apart.` : "";
  const summed = api.summed ? " Marks that would cover each other are counted, part by part." : "";
  const hidden = rows.fits ? " Only models with that in their name are shown." : "";
  const second = from.date === to.date ? to.time : `${to.date} ${to.time}`;
  const text = `${from.date} ${from.time} to ${second}, ${lasted(view.end - view.start)}.${narrow}${summed}${hidden}`;
  if (el("status").textContent !== text) el("status").textContent = text;
}
function describe(bar) {
  const facts = [["run", `${bar.run} of ${bar.model}`], ["asked for by", bar.by || "unknown"]];
  facts.push(["ports", bar.ports.join(", ") || "none"]);
  if (bar.pid !== null) facts.push(["pid", String(bar.pid)]);
  for (const span of bar.spans)
    facts.push([SAYS[span.state], `${lasted(span.end - span.start)} from ${clock(span.start).time}`]);
  facts.push(["ended", bar.ended ? bar.outcome : "not within this picture"]);
  if (bar.error) facts.push(["error", bar.error]);
  facts.push(["events", `${bar.first} to ${bar.last} (moorage why ${bar.last})`]);
  return facts;
}
const short = (bar) => {
  const states = bar.spans.map((s) => `${SAYS[s.state]} ${lasted(s.end - s.start)}`).join(", ");
  return `run ${bar.run} of ${bar.model}${bar.ports.length ? ` on ${bar.ports.join(", ")}` : ""}: ${states}; ${bar.ended ? bar.outcome : "open"}${bar.error ? `\n${bar.error}` : ""}`;
};
const markText = (mark) => `${clock(mark.at).time}  ${MARK_SAYS[mark.kind]}: ${mark.text} (event ${mark.seq})`;

function choose(bar, row, mark = null) {
  view.bar = bar;
  view.mark = mark;
  if (row) view.row = row;
  const box = el("details");
  box.textContent = "";
  if (bar || mark) {
    const list = document.createElement("dl");
    const facts = bar ? describe(bar) : [];
    if (mark) facts.unshift([MARK_SAYS[mark.kind], `${clock(mark.at).date} ${markText(mark)}`]);
    for (const [name, text] of facts) {
      list.append(Object.assign(document.createElement("dt"), { textContent: name }));
      list.append(Object.assign(document.createElement("dd"), { textContent: text }));
    }
    box.append(list);
  }
  resize();
}

// --- what is under the pointer ---

function rowAt(y) {
  const place = y - AXIS + chart.scrollTop;
  return y < AXIS ? null : rows.find((row) => place >= row.top && place < row.top + row.height) || null;
}
function under(x, y) {
  const row = rowAt(y), near = ((view.end - view.start) / width) * 2;
  const found = { row, bars: [], marks: [] };
  if (x < LABELS) return found;
  if (!row || row.kind === "head") {
    if (y < AXIS) found.marks = clusters(sessions, 8).filter((c) => Math.abs(c.x - x) < 7).flatMap((c) => c.marks);
    return found;
  }
  found.marks = rowClusters(row).filter((c) => Math.abs(c.x - x) < 8).flatMap((c) => c.marks);
  const t = T(x);
  for (const bar of visibleBars(row)) {
    const start = row.kind === "port" ? bar.held : bar.start;
    if (start <= t + near && bar.end >= t - near) found.bars.push(bar);
  }
  return found;
}
// Where a bar or a mark is in the window, and how many marks the symbols of all rows stand for.
api.find = (item) => {
  const row = item.row || rows.find((one) => one.kind === "model" && one.label === item.model);
  const box = canvas.getBoundingClientRect(), at = item.spans ? (item.start + item.end) / 2 : item.at;
  return { x: box.left + X(at), y: box.top + AXIS + row.top - chart.scrollTop + (item.spans ? row.height - 8 : 8) };
};
api.stoodFor = () => rows.filter((row) => row.marks).flatMap(rowClusters).concat(clusters(sessions, 8))
  .reduce((sum, one) => sum + one.marks.length, 0);

function list(items, limit, text) {
  const lines = items.slice(0, limit).map(text);
  if (items.length > limit) lines.push(`and ${items.length - limit} more: zoom in`);
  return lines;
}
function hover(event) {
  const box = canvas.getBoundingClientRect(), tip = el("tip");
  const found = under(event.clientX - box.left, event.clientY - box.top);
  const lines = [...list(found.marks, 6, markText), ...list(found.bars, 4, short)];
  tip.hidden = !lines.length;
  if (tip.hidden) return;
  tip.textContent = lines.join("\n");
  const right = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const under_ = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(right, 4)}px`;
  tip.style.top = `${Math.max(under_ ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10, 4)}px`;
}

// --- pointer ---

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  canvas.focus({ preventScroll: true });
  canvas.setPointerCapture(event.pointerId);
  drag = { x: event.clientX, start: view.start, moved: false };
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) return hover(event);
  const by = event.clientX - drag.x;
  if (!drag.moved && Math.abs(by) < 4) return;
  drag.moved = true;
  el("tip").hidden = true;
  canvas.classList.add("dragged");
  const span = view.end - view.start;
  const start = Math.min(Math.max(drag.start - (by / (width - LABELS - RIGHT)) * span, 0), LENGTH - span);
  show(start, start + span);
});
canvas.addEventListener("pointerup", (event) => {
  const was = drag;
  drag = null;
  canvas.classList.remove("dragged");
  if (!was || was.moved) return;
  const box = canvas.getBoundingClientRect();
  const found = under(event.clientX - box.left, event.clientY - box.top);
  choose(found.bars[0] || null, found.row && found.row.kind !== "head" ? found.row : null, found.marks[0] || null);
});
canvas.addEventListener("pointerleave", () => { el("tip").hidden = true; });
canvas.addEventListener("dblclick", (event) => zoom(0.4, T(event.clientX - canvas.getBoundingClientRect().left)));
canvas.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(Math.min(Math.max(event.deltaY, -200), 200) * 0.004), T(event.clientX - canvas.getBoundingClientRect().left));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    move((event.deltaX || event.deltaY) / (width - LABELS));
  }
}, { passive: false });
overview.addEventListener("pointerdown", (event) => {
  overview.setPointerCapture(event.pointerId);
  const box = overview.getBoundingClientRect(), from = OT(event.clientX - box.left), span = view.end - view.start;
  let moved = false;
  overview.onpointermove = (e) => {
    const to = OT(e.clientX - box.left);
    if (Math.abs(e.clientX - event.clientX) > 3) moved = true;
    if (moved) show(Math.min(from, to), Math.max(from, to));
  };
  overview.onpointerup = () => {
    overview.onpointermove = overview.onpointerup = null;
    if (!moved) show(from - span / 2, from + span / 2);
  };
});

// --- keys ---

function reveal(bar, row, mark = null) {
  const at = mark ? mark.at : bar.start, span = view.end - view.start;
  choose(bar, row, mark);
  if (at < view.start || at > view.end) show(at - span / 2, at + span / 2);
  const y = row.top - chart.scrollTop;
  if (y < 0 || y + row.height > height - AXIS) chart.scrollTop = Math.max(0, row.top - height / 3);
}
function nextMark(kinds, by) {
  const shown = new Set(rows);
  const list = marks.filter((m) => kinds.has(m.kind) && shown.has(m.row) && (!rows.fits || m.model === null || rows.fits(m)));
  if (!list.length) return;
  const now = view.mark ? list.indexOf(view.mark) : -1;
  let index;
  if (now >= 0) index = now + by;
  else index = by > 0 ? list.findIndex((m) => m.at >= view.start) : list.findLastIndex((m) => m.at <= view.end);
  const mark = list[Math.min(Math.max(index, 0), list.length - 1)];
  reveal(bars.find((bar) => bar.run === mark.run) || null, mark.row, mark);
}
function nextBar(by) {
  const row = view.row || rows.find((r) => r.bars && r.bars.length);
  if (!row) return;
  const list = rows.fits ? row.bars.filter(rows.fits) : row.bars;
  const now = view.bar ? list.indexOf(view.bar) : -1;
  const index = now >= 0 ? now + by : Math.max(list.findIndex((bar) => bar.end >= view.start), 0);
  const bar = list[Math.min(Math.max(index, 0), list.length - 1)];
  if (bar) reveal(bar, row);
}
function nextRow(by) {
  const list = rows.filter((row) => row.kind !== "head");
  if (!list.length) return;
  const now = list.indexOf(view.row);
  view.row = list[Math.min(Math.max(now < 0 ? 0 : now + by, 0), list.length - 1)];
  const top = view.row.top - chart.scrollTop;
  if (top < 0 || top + view.row.height > height - AXIS) chart.scrollTop = Math.max(0, view.row.top - height / 3);
  el("details").textContent = `${view.row.kind} ${view.row.label}: ${view.row.bars.length} runs`;
  draw();
}
const ACTS = {
  in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25),
  all: () => show(0, LENGTH), eviction: () => nextMark(new Set(["eviction"]), 1), trouble: () => nextMark(TROUBLE, 1),
};
const KEYS = {
  "+": ACTS.in, "=": ACTS.in, "-": ACTS.out, "_": ACTS.out, ArrowLeft: ACTS.left, ArrowRight: ACTS.right,
  0: ACTS.all, Home: ACTS.all, ArrowUp: () => chart.scrollBy(0, -60), ArrowDown: () => chart.scrollBy(0, 60),
  PageUp: () => chart.scrollBy(0, -height), PageDown: () => chart.scrollBy(0, height),
  n: () => nextBar(1), N: () => nextBar(-1), j: () => nextRow(1), k: () => nextRow(-1),
  e: ACTS.eviction, E: () => nextMark(new Set(["eviction"]), -1), c: ACTS.trouble, C: () => nextMark(TROUBLE, -1),
  Enter: () => { if (view.bar) { const pad = Math.max((view.bar.end - view.bar.start) * 0.1, 50); show(view.bar.start - pad, view.bar.end + pad); } },
  Escape: () => choose(null, null),
};
canvas.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
el("controls").addEventListener("click", (event) => {
  const act = ACTS[event.target.dataset.do];
  if (act) act();
});
el("filter").addEventListener("input", place);

// --- start ---

function legend() {
  const counts = new Map();
  for (const mark of marks) counts.set(mark.kind, (counts.get(mark.kind) || 0) + 1);
  const entries = data.states.map((state) => [SAYS[state], (pen_) => {
    pen_.fillStyle = colours[state];
    pen_.fillRect(0, WAITING.has(state) ? 5 : 2, 18, WAITING.has(state) ? 4 : 10);
    if (!HATCHED.has(state)) return;
    pen_.strokeStyle = colours.paper;
    pen_.globalAlpha = 0.55;
    for (let x = -10; x < 18; x += 6) { pen_.beginPath(); pen_.moveTo(x, 12); pen_.lineTo(x + 10, 2); pen_.stroke(); }
  }]);
  for (const kind of data.kinds) {
    const count = counts.get(kind);
    if (count) entries.push([`${MARK_SAYS[kind]} (${count.toLocaleString("en")})`, (pen_) => symbol(pen_, kind, 9, 7, 4.2, kind === "killed" ? colours.crash : colours[kind])]);
  }
  const scale = window.devicePixelRatio || 1;
  el("legend").replaceChildren(...entries.map(([text, sample]) => {
    const item = document.createElement("li"), swatch = document.createElement("canvas");
    swatch.width = 18 * scale;
    swatch.height = 14 * scale;
    swatch.style.width = "18px";
    swatch.style.height = "14px";
    const pen_ = swatch.getContext("2d");
    pen_.scale(scale, scale);
    sample(pen_);
    item.append(swatch, text);
    return item;
  }));
}
function recolour() { strip = null; readColours(); legend(); draw(); }
const outside = data.left_out ? `, ${data.left_out.toLocaleString("en")} more lie outside this time` : "";
el("summary").textContent = data.events
  ? `${bars.length.toLocaleString("en")} runs of ${data.models.length} models on ${data.ports.length} ports${outside}; from ${data.events.toLocaleString("en")} events, ${data.start} to ${data.end}`
  : "This log holds no event.";
canvas.setAttribute("aria-label", `Timeline. ${el("summary").textContent}`);
makeRows();
readColours();
legend();
place();
window.addEventListener("resize", resize);
chart.addEventListener("scroll", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new ResizeObserver(() => { if (chart.clientWidth !== width || chart.clientHeight !== height) resize(); }).observe(chart);
})();
