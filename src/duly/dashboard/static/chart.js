// Redraws the overview's chart from the table below it, with values, zoom and series to hide.
"use strict";
(() => {
  const box = document.getElementById("plot");
  if (!box || !window.uPlot) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => () => style.getPropertyValue(name).trim();
  const make = (tag, kind, words = "") => {
    const found = document.createElement(tag);
    found.className = kind;
    found.textContent = words;
    return found;
  };
  // In stacking order, from top to bottom.
  const series = [
    { name: "succeeded", column: 1, css: "--bar-good" },
    { name: "cancelled", column: 3, css: "--bar-other" },
    { name: "failed", column: 2, css: "--bar-bad" },
    { name: "mean wait", column: 4, css: "--odd" },
    { name: "attempts retried", column: 5, css: "--warn" },
  ];
  const step = Number(box.dataset.step);
  const shown = new Set(series);
  let rows = [];
  let marks = [];
  let told = "";

  // -- words ----------------------------------------------------------------------------------
  const two = (number) => String(number).padStart(2, "0");
  const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const time = (at) => { const on = new Date(at * 1000); return `${two(on.getUTCHours())}:${two(on.getUTCMinutes())}`; };
  const day = (at) => { const on = new Date(at * 1000); return `${days[on.getUTCDay()]} ${two(on.getUTCDate())}`; };
  const number = new Intl.NumberFormat("en");

  // -- data -----------------------------------------------------------------------------------
  const read = () => {
    const ends = [...document.querySelectorAll("[data-ends]")].map((row) => row.dataset.ends).reverse();
    const deploys = [...document.querySelectorAll("[data-mark]")];
    const text = ends.join(";") + deploys.map((mark) => mark.textContent).join(";");
    if (text === told) return false;
    told = text;
    rows = ends.map((row) => row.split(",").map((part) => (part === "" ? null : Number(part))));
    marks = deploys.map((mark) => ({ at: Number(mark.dataset.mark), label: mark.dataset.label, title: mark.textContent }));
    return true;
  };
  // The top of a bar is the sum of its own value and those below.
  const stacked = () => {
    const bars = series.slice(0, 3);
    const tops = bars.map((top, place) => rows.map((row) => bars.slice(place)
      .reduce((sum, one) => sum + (shown.has(one) ? row[one.column] : 0), 0)));
    const waits = rows.map((row) => (row[4] === null ? null : row[4] / 1e6));
    return [rows.map((row) => row[0] + step / 2), ...tops, waits, rows.map((row) => row[5] || null)];
  };

  // -- around the canvas ----------------------------------------------------------------------
  const legend = make("div", "plot-legend");
  legend.setAttribute("role", "group");
  legend.setAttribute("aria-label", "Series");
  const reset = make("button", "link", "Whole time");
  reset.type = "button";
  reset.hidden = true;
  const area = make("div", "plot-area");
  area.tabIndex = 0;
  area.setAttribute("role", "group");
  area.setAttribute("aria-roledescription", "chart");
  const tip = make("div", "plot-tip");
  tip.setAttribute("role", "status");
  tip.hidden = true;
  const height = () => {
    const drawn = [...document.querySelectorAll(".drawn svg")].map((each) => each.getBoundingClientRect().height);
    return Math.max(150, ...drawn);
  };
  const tall = height();

  // -- the chart ------------------------------------------------------------------------------
  const bars = uPlot.paths.bars({ size: [0.86, 60] });
  const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const whole = () => [rows[0][0], rows[rows.length - 1][0] + step];
  const isZoomed = (plot) => plot.scales.x.min > whole()[0] || plot.scales.x.max < whole()[1];
  const upTo = (_plot, _least, most) => [0, most > 0 ? most * 1.08 : 1];
  const options = {
    width: 600,
    height: tall,
    legend: { show: false },
    padding: [18, 8, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, dist: 6 } },
    scales: { x: { time: true, range: (_plot, least, most) => (least === null ? whole() : [least, most]) }, y: { range: upTo }, wait: { range: upTo } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 70, values: (_plot, at) => at.map(at.length > 1 && at[1] - at[0] >= 86400 ? day : time) },
      { ...axis, size: 44, values: (_plot, at) => at.map((one) => (Number.isInteger(one) ? number.format(one) : "")) },
      { ...axis, scale: "wait", side: 1, size: 56, grid: { show: false }, stroke: colour("--odd"), values: (_plot, at) => at.map((one) => (one ? times.duration(Math.round(one * 1e6)) : "0")) },
    ],
    series: [
      {},
      ...series.slice(0, 3).map((one) => ({ paths: bars, fill: colour(one.css), width: 0, points: { show: false } })),
      { scale: "wait", stroke: colour("--odd"), width: 1.2, spanGaps: true, points: { show: true, size: 5, width: 1.4, fill: colour("--card") } },
      { stroke: colour("--warn"), width: 1.2, dash: [3, 3], points: { show: true, size: 6, width: 0, fill: colour("--warn") } },
    ],
    hooks: { setCursor: [(plot) => showTip(plot)], draw: [(plot) => placeMarks(plot)], setScale: [(plot, key) => { if (key === "x") reset.hidden = !isZoomed(plot); }] },
  };
  const showTip = (plot) => {
    const { left, idx } = plot.cursor;
    tip.hidden = idx === null || idx === undefined || left < 0;
    if (tip.hidden) return;
    const row = rows[idx];
    const until = row[0] + step;
    const parts = [make("b", "", `${day(row[0])}, ${time(row[0])}–${time(until)} UTC`)];
    series.filter((one) => shown.has(one)).forEach((one) => {
      const value = row[one.column];
      if (one.column !== 4) parts.push(make("span", "", `${number.format(value)} ${one.name}`));
      else if (value !== null) parts.push(make("span", "", `${times.duration(value)} mean wait`));
    });
    marks.filter((mark) => mark.at >= row[0] && mark.at < until).forEach((mark) => parts.push(make("span", "plot-tip-mark", mark.title)));
    tip.replaceChildren(...parts);
    const room = plot.over.clientWidth;
    const at = plot.valToPos(row[0] + step / 2, "x");
    tip.style.transform = `translateX(${Math.max(0, Math.min(room - tip.offsetWidth, at - tip.offsetWidth / 2))}px)`;
  };
  const placeMarks = (plot) => {
    plot.over.querySelectorAll(".plot-mark").forEach((mark) => mark.remove());
    marks.forEach((mark) => {
      const at = plot.valToPos(mark.at, "x");
      if (at < 0 || at > plot.over.clientWidth) return;
      const line = make("div", at > plot.over.clientWidth * 0.8 ? "plot-mark late" : "plot-mark", "");
      line.append(make("span", "", mark.label));
      line.title = mark.title;
      line.style.left = `${at}px`;
      plot.over.append(line);
    });
  };

  read();
  if (!rows.length) return;
  box.append(legend, area);
  document.documentElement.classList.add("plotted"); // Hides the server's chart.
  const plot = new uPlot(options, stacked(), area);
  plot.over.append(tip);
  const fit = () => plot.setSize({ width: area.clientWidth, height: tall });
  new ResizeObserver(fit).observe(area);

  // -- interaction -------------------------------------------------------------------------
  const draw = () => {
    const { min, max } = plot.scales.x;
    const zoomed = isZoomed(plot);
    plot.batch(() => {
      plot.setData(stacked(), false);
      plot.setScale("x", zoomed ? { min, max } : { min: whole()[0], max: whole()[1] });
    });
    area.setAttribute("aria-label", `${box.dataset.label} Arrow keys tell the values; the table below has all.`);
  };
  series.forEach((one, place) => {
    const button = make("button", `plot-series p-${["good", "other", "bad", "wait", "retried"][place]}`, one.name);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (shown.has(one)) shown.delete(one); else shown.add(one);
      button.setAttribute("aria-pressed", String(shown.has(one)));
      plot.setSeries(place + 1, { show: shown.has(one) });
      draw();
    });
    legend.append(button);
  });
  legend.append(reset);
  reset.addEventListener("click", () => { plot.setScale("x", { min: whole()[0], max: whole()[1] }); area.focus(); });
  area.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const { idx } = plot.cursor;
    const next = Math.max(0, Math.min(rows.length - 1, idx === null || idx === undefined ? rows.length - 1 : idx + by));
    plot.setCursor({ left: plot.valToPos(rows[next][0] + step / 2, "x"), top: 10 });
  });
  area.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
  document.addEventListener("duly:shown", () => { if (read() && rows.length) draw(); });
  const repaint = () => plot.redraw(false);
  new MutationObserver(repaint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  fit();
  draw();
})();
