"use strict";

/** Small charts as SVG, drawn at the width that they have. */
(function () {
  const { h, svg } = REPORT.dom;
  const MARGIN = { left: 40, right: 14, top: 8, bottom: 34 };
  const HIDDEN_WIDTH = 520; // while the chart is not shown, for example before printing
  const PRINT_WIDTH = 330; // about half a page, so that the text keeps its size on paper
  const LINE_HEIGHT = 232;
  const BOTTOM = LINE_HEIGHT - MARGIN.bottom;

  /** Draws now and whenever the width changes. */
  function responsive(draw) {
    const holder = h("div.chart");
    let width = 0;
    const redraw = (wanted) => {
      if (wanted === width) return;
      width = wanted;
      holder.replaceChildren(...draw(width));
    };
    const fit = () => redraw(Math.round(holder.clientWidth) || width || HIDDEN_WIDTH);
    new ResizeObserver(fit).observe(holder);
    window.addEventListener("beforeprint", () => holder.isConnected && redraw(PRINT_WIDTH));
    window.addEventListener("afterprint", () => holder.isConnected && fit());
    fit();
    return holder;
  }

  /** Round numbers that cover [low, high] in about `wanted` steps; two at least, also for one value. */
  function ticks(low, high, wanted = 5) {
    const rough = (high - low || 1) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const isOne = low === high && Number.isInteger(low / step);
    const first = Math.floor(low / step) - (isOne && low > 0 ? 1 : 0);
    const last = Math.ceil(high / step) + (isOne && low <= 0 ? 1 : 0);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  const scale =
    ([low, high], [from, to]) =>
    (value) =>
      from + ((value - low) / (high - low || 1)) * (to - from);

  const label = (text, x, y, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);

  function frame({ width, x, y, xTicks, yTicks, xLabel }) {
    const [x1, x2] = [MARGIN.left, width - MARGIN.right];
    return [
      yTicks.map((value) => svg("line", { class: "grid-line", x1, x2, y1: y(value), y2: y(value) })),
      yTicks.map((value) => label(String(value), x1 - 7, y(value) + 4, "end")),
      xTicks.map((value) => label(String(value), x(value), BOTTOM + 15, "middle")),
      label(xLabel, (x1 + x2) / 2, LINE_HEIGHT - 4, "middle"),
    ];
  }

  const strokeOf = ({ colour, dash, strong }) => ({
    "stroke": colour,
    "stroke-width": strong ? 2.6 : 1.8,
    "stroke-dasharray": dash,
  });

  function curve(series, x, y) {
    const { points, colour, dots } = series;
    const path = points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const line = svg("path", { d: path, ...strokeOf(series) });
    const marks = points.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: 2.6, fill: colour }));
    return svg("g", line, (dots || points.length === 1) && marks); // a line of one point is invisible
  }

  function keyLine(series) {
    const line = svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, ...strokeOf(series) });
    return svg("svg", { width: 22, height: 8 }, line);
  }

  /** A line under the pointer, with the values at it written into the legend. */
  function attachReadout(picture, legend, { series, x, xLabel, valueFormat }) {
    const guide = svg("line", { class: "guide", y1: MARGIN.top, y2: BOTTOM, visibility: "hidden" });
    const values = [...legend.querySelectorAll("b")];
    const positions = [...new Set(series.flatMap(({ points }) => points.map(([a]) => a)))];
    picture.append(guide);
    picture.addEventListener("pointermove", (event) => {
      const at = event.clientX - picture.getBoundingClientRect().left;
      const nearest = positions.reduce((best, a) =>
        Math.abs(x(a) - at) < Math.abs(x(best) - at) ? a : best,
      );
      for (const [name, value] of Object.entries({ x1: x(nearest), x2: x(nearest), visibility: "visible" }))
        guide.setAttribute(name, value);
      values.forEach((node, i) => {
        const hit = series[i].points.find(([a]) => a === nearest);
        node.textContent = hit ? ` ${valueFormat(hit[1])}` : "";
      });
      legend.dataset.at = `${xLabel} ${nearest}`;
    });
    picture.addEventListener("pointerleave", () => {
      guide.setAttribute("visibility", "hidden");
      values.forEach((node) => (node.textContent = ""));
      delete legend.dataset.at;
    });
  }

  /**
   * Curves over a common axis.
   * @param {Object} chart series: [{name, colour, dash, strong, dots, points: [[x, y]]}]; xLabel, title,
   *     yDomain and xTicks (made from the data if absent), valueFormat.
   */
  function lines({ series: given, xLabel, title, yDomain, xTicks, valueFormat }) {
    const series = given.filter(({ points }) => points.length);
    if (!series.length) return h("p.muted", "no values");
    const all = series.flatMap(({ points }) => points);
    const range = (values) => [Math.min(...values), Math.max(...values)];
    const yTicks = ticks(...(yDomain || range(all.map(([, b]) => b))));
    const [low, high] = range(all.map(([a]) => a));
    const isMark = (value) => Number.isInteger(value) && value >= low && value <= high; // ranks, epochs
    const marks = (xTicks || ticks(low, high, 6)).filter(isMark);
    return responsive((width) => {
      const x = scale([low, high], [MARGIN.left + 4, width - MARGIN.right]);
      const y = scale([yTicks[0], yTicks[yTicks.length - 1]], [BOTTOM, MARGIN.top]);
      const size = { viewBox: `0 0 ${width} ${LINE_HEIGHT}`, width, height: LINE_HEIGHT };
      const picture = svg(
        "svg",
        { ...size, "role": "img", "aria-label": title },
        frame({ width, x, y, xTicks: marks, yTicks, xLabel }),
        series.map((one) => curve(one, x, y)),
      );
      const names = series.map((one) => h("span", keyLine(one), one.name, h("b")));
      const legend = h("div.legend-line", names);
      attachReadout(picture, legend, { series, x, xLabel, valueFormat });
      return [legend, picture];
    });
  }

  /**
   * Bars from 0 to 100 % with marks.
   * @param {Object[]} bars name, value, text.
   * @param {Object[]} marks name, kind, text; value is one number for all bars, or one for each by its name.
   */
  function markedBars(bars, marks) {
    const at = (mark, name) => (typeof mark.value === "object" ? mark.value[name] : mark.value);
    const rows = bars.map(({ name, value, text }) =>
      h(
        "div.marked-row",
        h("span", name),
        h(
          "div.marked-track",
          h("i.marked-bar", { style: { width: `${value}%` } }),
          marks.map((mark) => h("i.mark", { class: mark.kind, style: { left: `${at(mark, name)}%` } })),
        ),
        h("b", text),
      ),
    );
    const heads = marks.map(({ name, text, kind }) =>
      h("span", { class: kind }, h("i.mark-key"), `${name} `, h("b", text), " %"),
    );
    return h("div.marked", rows, h("div.mark-heads.muted", heads));
  }

  REPORT.charts = { lines, markedBars };
})();
