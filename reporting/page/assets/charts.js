"use strict";

/** Small charts as SVG, drawn at the width of their place. */
(function () {
  const { element, svg } = REPORT.dom;
  const MARGIN = { left: 40, right: 14, top: 8, bottom: 34 };
  const HIDDEN_WIDTH = 520; // while the place is not shown, for example before printing
  const PRINT_WIDTH = 330; // about half a page, so that the text keeps its size on paper
  const LINE_HEIGHT = 232;

  /** Draws now and whenever the width changes. */
  function responsive(draw) {
    const place = element("div", { class: "chart" });
    let width = 0;
    const redraw = (wanted) => {
      if (wanted === width) return;
      width = wanted;
      place.replaceChildren(...draw(width));
    };
    const fit = () => redraw(Math.round(place.clientWidth) || width || HIDDEN_WIDTH);
    new ResizeObserver(fit).observe(place);
    window.addEventListener("beforeprint", () => place.isConnected && redraw(PRINT_WIDTH));
    window.addEventListener("afterprint", () => place.isConnected && fit());
    fit();
    return place;
  }

  /** Round numbers that cover [low, high] in about `wanted` steps. */
  function ticks(low, high, wanted = 5) {
    const rough = (high - low || 1) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const first = Math.floor(low / step);
    const last = Math.ceil(high / step);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  const scale =
    ([low, high], [from, to]) =>
    (value) =>
      from + ((value - low) / (high - low || 1)) * (to - from);

  function frame({ width, x, y, xTicks, yTicks, xLabel, yFormat }) {
    const bottom = LINE_HEIGHT - MARGIN.bottom;
    const rows = yTicks.map((value) =>
      svg(
        "g",
        {},
        svg("line", {
          class: "grid-line",
          x1: MARGIN.left,
          x2: width - MARGIN.right,
          y1: y(value),
          y2: y(value),
        }),
        svg("text", { "x": MARGIN.left - 7, "y": y(value) + 4, "text-anchor": "end" }, yFormat(value)),
      ),
    );
    const columns = xTicks.map((value) =>
      svg("text", { "x": x(value), "y": bottom + 15, "text-anchor": "middle" }, String(value)),
    );
    const label = svg(
      "text",
      {
        "class": "axis-label",
        "x": (MARGIN.left + width - MARGIN.right) / 2,
        "y": LINE_HEIGHT - 4,
        "text-anchor": "middle",
      },
      xLabel,
    );
    return [...rows, ...columns, label];
  }

  function curve({ points, colour, dash, strong, dots }, x, y) {
    const path = points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const line = svg("path", {
      "d": path,
      "fill": "none",
      "stroke": colour,
      "stroke-width": strong ? 2.5 : 1.6,
      "stroke-dasharray": dash,
      "stroke-linejoin": "round",
    });
    const marks = dots
      ? points.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: 2.6, fill: colour }))
      : [];
    return svg("g", {}, line, marks);
  }

  function keyLine({ colour, dash, strong }) {
    return svg(
      "svg",
      { width: 22, height: 8, class: "key" },
      svg("line", {
        "x1": 0,
        "x2": 22,
        "y1": 4,
        "y2": 4,
        "stroke": colour,
        "stroke-width": strong ? 3 : 2,
        "stroke-dasharray": dash,
      }),
    );
  }

  /** A line under the pointer, with the values at it written into the legend. */
  function attachReadout(picture, { series, values, x, xName, valueFormat }) {
    const guide = svg("line", {
      class: "guide",
      y1: MARGIN.top,
      y2: LINE_HEIGHT - MARGIN.bottom,
      visibility: "hidden",
    });
    const places = [...new Set(series.flatMap(({ points }) => points.map(([a]) => a)))];
    picture.append(guide);
    picture.addEventListener("pointermove", (event) => {
      const at = event.clientX - picture.getBoundingClientRect().left;
      const nearest = places.reduce(
        (best, a) => (Math.abs(x(a) - at) < Math.abs(x(best) - at) ? a : best),
        places[0],
      );
      guide.setAttribute("x1", x(nearest));
      guide.setAttribute("x2", x(nearest));
      guide.setAttribute("visibility", "visible");
      values.forEach((node, i) => {
        const hit = series[i].points.find(([a]) => a === nearest);
        node.textContent = hit ? ` ${valueFormat(hit[1])}` : "";
      });
      values[0].parentNode.parentNode.dataset.at = `${xName} ${nearest}`;
    });
    picture.addEventListener("pointerleave", () => {
      guide.setAttribute("visibility", "hidden");
      values.forEach((node) => (node.textContent = ""));
      delete values[0].parentNode.parentNode.dataset.at;
    });
  }

  /**
   * Curves over a common axis.
   * @param {Object} chart series: [{name, colour, dash, strong, dots, points: [[x, y]]}];
   *     xLabel, xName, label,
   *     yDomain, xTicks (made from the data if absent), yFormat, valueFormat.
   */
  function lines({
    series: given,
    xLabel,
    xName,
    label,
    yDomain,
    xTicks,
    yFormat = String,
    valueFormat = String,
  }) {
    const series = given.filter(({ points }) => points.length);
    if (!series.length) return element("p", { class: "empty" }, "no values");
    return responsive((width) => {
      const all = series.flatMap(({ points }) => points);
      const xs = all.map(([a]) => a);
      const ys = all.map(([, b]) => b);
      const yTicks = ticks(...(yDomain || [Math.min(...ys), Math.max(...ys)]));
      const low = Math.min(...xs);
      const high = Math.max(...xs);
      const x = scale([low, high], [MARGIN.left + 4, width - MARGIN.right]);
      const y = scale([yTicks[0], yTicks[yTicks.length - 1]], [LINE_HEIGHT - MARGIN.bottom, MARGIN.top]);
      const marks = (xTicks || ticks(low, high, 6)).filter((value) => value >= low && value <= high);
      const picture = svg(
        "svg",
        {
          "viewBox": `0 0 ${width} ${LINE_HEIGHT}`,
          width,
          "height": LINE_HEIGHT,
          "role": "img",
          "aria-label": label,
        },
        frame({ width, x, y, xTicks: marks, yTicks, xLabel, yFormat }),
        series.map((one) => curve(one, x, y)),
      );
      const values = series.map(() => element("b", {}));
      const legend = element(
        "div",
        { class: "legend-line" },
        series.map((one, i) => element("span", {}, keyLine(one), one.name, values[i])),
      );
      attachReadout(picture, { series, values, x, xName, valueFormat });
      return [legend, picture];
    });
  }

  /**
   * One bar of shares.
   * @param {Array} parts [{name, value, colour, text}]
   */
  function stackedBar(label, total, parts) {
    const sum = parts.reduce((before, { value }) => before + value, 0) || 1;
    return element(
      "div",
      { class: "stacked" },
      element("div", { class: "stacked-head" }, element("span", {}, label), element("b", {}, total)),
      element(
        "div",
        {
          "class": "stacked-bar",
          "role": "img",
          "aria-label": `${label}: ${parts.map((p) => p.text).join(", ")}`,
        },
        parts
          .filter(({ value }) => value > 0)
          .map(({ value, colour, text }) =>
            element("i", {
              title: text,
              style: { "flex-grow": String(value / sum), "background": colour },
            }),
          ),
      ),
    );
  }

  /**
   * Bars from 0 to 100 % with marks.
   * @param {Object[]} bars name, value, text.
   * @param {Object[]} marks name, kind, text; value is one number for all bars, or one for each by its name.
   */
  function markedBars(bars, marks) {
    const at = (mark, name) => (typeof mark.value === "object" ? mark.value[name] : mark.value);
    const row = ({ name, value, text }) =>
      element(
        "div",
        { class: "marked-row" },
        element("span", {}, name),
        element(
          "div",
          { class: "marked-track" },
          element("i", { class: "marked-bar", style: { width: `${value}%` } }),
          marks.map((mark) =>
            element("i", { class: `mark ${mark.kind}`, style: { left: `${at(mark, name)}%` } }),
          ),
        ),
        element("b", {}, text),
      );
    const heads = marks.map(({ name, text, kind }) =>
      element(
        "span",
        { class: kind },
        element("i", { class: "mark-key" }),
        `${name} `,
        element("b", {}, text),
        " %",
      ),
    );
    return element("div", { class: "marked" }, bars.map(row), element("div", { class: "mark-heads" }, heads));
  }

  REPORT.charts = { lines, stackedBar, markedBars };
})();
