"use strict";

/** The feature map: all test triples in the plane, coloured by what they are. */
(function () {
  const { h, byId, segmented, markChoice, placeBeside, roundButton } = REPORT.dom;
  const { fixed, cameraName, cameraOf, person, conditionName, conditionNow, patternNow, compareValues } =
    REPORT.words;
  const { many, few, viridis, legendKey, legendScale } = REPORT.colours;
  const { indexOf, isPositive } = REPORT.queryList;
  const MARGIN = 26;
  const PICK_RADIUS = 14;
  const MAX_ZOOM = 24;
  const RADIUS = 4.2;
  const FADED = 0.13;
  const WHEEL_SPEED = 0.0015;
  const DRAG_START = 4; // pixels that tell a drag from a click
  const ZOOM_STEP = 1.6;
  const UNSCORED = "#9aa3af";
  const COLOURS = { person: "Identity", camera: "Camera", ap: "AP" };

  /** Paths of the markers, around (x, y), of about equal area. */
  const MARKERS = [
    (c, x, y, r) => c.arc(x, y, r, 0, 2 * Math.PI),
    (c, x, y, r) => c.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r),
    (c, x, y, r) => polygon(c, x, y, 1.35 * r, 3, -Math.PI / 2),
    (c, x, y, r) => polygon(c, x, y, 1.25 * r, 4, 0),
    (c, x, y, r) => polygon(c, x, y, 1.35 * r, 3, Math.PI / 2),
  ];

  function polygon(context, x, y, radius, corners, turn) {
    for (let i = 0; i < corners; i += 1) {
      const angle = turn + (2 * Math.PI * i) / corners;
      context[i ? "lineTo" : "moveTo"](x + radius * Math.cos(angle), y + radius * Math.sin(angle));
    }
    context.closePath();
  }

  /** Points on a canvas that can be moved and enlarged. */
  class Scatter {
    /**
     * @param {HTMLCanvasElement} canvas
     * @param {Object} handlers onHover(row or null, event), onPick(row).
     */
    constructor(canvas, { onHover, onPick }) {
      this.canvas = canvas;
      this.points = { x: [], y: [] };
      this.view = { zoom: 1, x: 0, y: 0 }; // screen = position · zoom + (x, y)
      this.drag = null;
      this.frame = 0;
      canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.onDown(event));
      canvas.addEventListener("pointermove", (event) => this.onMove(event, onHover));
      canvas.addEventListener("pointerup", (event) => this.onUp(event, onPick));
      canvas.addEventListener("pointerleave", () => onHover(null));
      canvas.addEventListener("dblclick", () => this.resetView());
      new ResizeObserver(() => this.resize()).observe(canvas.parentNode);
    }

    /** @param {{x: number[], y: number[]}} points one per row. */
    setPoints(points) {
      this.points = points;
      this.layOut();
      this.schedule();
    }

    /**
     * @param {function(number): Object} look row → {colour, marker, strength}; strength is "faded", "normal",
     *     "match" or "query".
     */
    setLook(look) {
      this.look = look;
      this.schedule();
    }

    resize() {
      const { clientWidth: width, clientHeight: height } = this.canvas.parentNode;
      if (!width || !height) return;
      const ratio = window.devicePixelRatio;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.size = { width, height, ratio };
      this.layOut();
      this.draw();
    }

    /** Positions at zoom 1: one scale for both axes, since distances mean something, directions do not. */
    layOut() {
      const { x, y } = this.points;
      if (!this.size || !x.length) return;
      const range = (values) =>
        values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
      const [left, right] = range(x);
      const [top, bottom] = range(y);
      const { width, height } = this.size;
      const factor = Math.min(
        (width - 2 * MARGIN) / (right - left || 1),
        (height - 2 * MARGIN) / (bottom - top || 1),
      );
      this.baseX = x.map((value) => width / 2 + (value - (left + right) / 2) * factor);
      this.baseY = y.map((value) => height / 2 + (value - (top + bottom) / 2) * factor);
    }

    /** Where a row is on the canvas, in CSS pixels. */
    position(row) {
      const { zoom, x, y } = this.view;
      return [this.baseX[row] * zoom + x, this.baseY[row] * zoom + y];
    }

    schedule() {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => this.draw());
    }

    draw() {
      if (!this.size || !this.baseX) return;
      const context = this.canvas.getContext("2d");
      context.setTransform(this.size.ratio, 0, 0, this.size.ratio, 0, 0);
      context.clearRect(0, 0, this.size.width, this.size.height);
      const layers = { faded: [], normal: [], match: [], query: [] };
      this.baseX.forEach((_, row) => {
        const look = this.look(row);
        layers[look.strength].push([row, look]);
      });
      for (const layer of Object.values(layers))
        for (const [row, look] of layer) this.drawPoint(context, row, look);
    }

    drawPoint(context, row, { colour, marker, strength }) {
      const [x, y] = this.position(row);
      const radius = RADIUS * Math.min(1.8, this.view.zoom ** 0.25) * (strength === "query" ? 1.5 : 1);
      context.globalAlpha = strength === "faded" ? FADED : 0.88;
      context.fillStyle = colour;
      context.beginPath();
      MARKERS[marker % MARKERS.length](context, x, y, radius);
      context.fill();
      if (strength !== "match" && strength !== "query") return;
      context.globalAlpha = 1;
      context.strokeStyle = "#18212f";
      context.lineWidth = strength === "query" ? 2.2 : 1.3;
      context.beginPath();
      context.arc(x, y, radius + (strength === "query" ? 5 : 2.5), 0, 2 * Math.PI);
      context.stroke();
    }

    pointOf(event) {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    /** The row nearest to the pointer, or null if none is near. */
    pick(event) {
      if (!this.baseX) return null;
      const [x, y] = this.pointOf(event);
      let best = null;
      let nearest = PICK_RADIUS ** 2;
      for (let row = 0; row < this.baseX.length; row += 1) {
        const [a, b] = this.position(row);
        const distance = (a - x) ** 2 + (b - y) ** 2;
        if (distance < nearest) [best, nearest] = [row, distance];
      }
      return best;
    }

    onWheel(event) {
      event.preventDefault();
      this.zoomAt(Math.exp(-event.deltaY * WHEEL_SPEED), this.pointOf(event));
    }

    /** Enlarges around a point of the canvas, by default its middle. */
    zoomAt(factor, [x, y] = [this.size.width / 2, this.size.height / 2]) {
      const zoom = Math.min(MAX_ZOOM, Math.max(1, this.view.zoom * factor));
      const change = zoom / this.view.zoom;
      this.view =
        zoom === 1
          ? { zoom, x: 0, y: 0 }
          : { zoom, x: x - (x - this.view.x) * change, y: y - (y - this.view.y) * change };
      this.schedule();
    }

    resetView() {
      this.view = { zoom: 1, x: 0, y: 0 };
      this.schedule();
    }

    onDown(event) {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { start: this.pointOf(event), view: { ...this.view }, moved: false };
    }

    onMove(event, onHover) {
      if (!this.drag) return onHover(this.pick(event), event);
      const [x, y] = this.pointOf(event);
      const [dx, dy] = [x - this.drag.start[0], y - this.drag.start[1]];
      this.drag.moved = this.drag.moved || Math.hypot(dx, dy) > DRAG_START;
      if (!this.drag.moved) return;
      this.view = { ...this.drag.view, x: this.drag.view.x + dx, y: this.drag.view.y + dy };
      onHover(null);
      this.schedule();
    }

    onUp(event, onPick) {
      const clicked = this.drag && !this.drag.moved;
      this.drag = null;
      const row = clicked ? this.pick(event) : null;
      if (row !== null) onPick(row);
    }
  }

  let scatter;
  let parts; // the elements that change
  let hovered = null;
  let order; // identity, camera → its number among those of the set

  const numbered = (column) =>
    new Map([...new Set(column)].sort(compareValues).map((value, i) => [value, i]));

  const isQuery = (row) => indexOf(row) >= 0;

  const apOf = (row) => REPORT.rankLists.ranking()?.ap[indexOf(row)];

  /** The colour and the marker of a triple. */
  function kindOf(row) {
    const { colour } = REPORT.state.values;
    if (colour === "ap") {
      const ap = apOf(row) ?? null;
      return { colour: ap === null ? UNSCORED : viridis(ap / 100), marker: 0 };
    }
    const number = order[colour].get(REPORT.summary.triples[colour][row]);
    return { colour: colour === "camera" ? few(number) : many(number), marker: number };
  }

  /** The identity under the pointer stands out; else the current query and its positives are ringed. */
  function strengthOf(row) {
    const { query } = REPORT.state.values;
    if (row === query) return "query";
    if (hovered !== null && person(row) !== person(hovered)) return "faded";
    return query !== null && isPositive(query, row) ? "match" : "normal";
  }

  const look = (row) => ({ ...kindOf(row), strength: strengthOf(row) });

  function onHover(row, event) {
    if (row !== hovered) {
      hovered = row;
      parts.canvas.dataset.hovered = row === null ? "" : row;
      parts.canvas.style.cursor = row === null ? "grab" : isQuery(row) ? "pointer" : "default";
      scatter.setLook(look);
      fillTip(row);
    }
    if (row !== null) placeBeside(parts.tip, event.clientX, event.clientY);
  }

  function fillTip(row) {
    parts.tip.hidden = row === null;
    if (row === null) return;
    const text = isQuery(row) ? `AP ${fixed(apOf(row))} · click for its rank list` : "in the gallery only";
    parts.tip.replaceChildren(
      REPORT.triple.triple(row),
      h("div.tip-head", h("b", `id ${person(row)}`), ` ${cameraOf(row)}`),
      h("div", text),
    );
  }

  function onPick(row) {
    if (!isQuery(row)) return;
    onHover(null);
    REPORT.rankLists.openQuery(row);
  }

  function legendParts() {
    const { colour, query } = REPORT.state.values;
    const name = `query #${query}, id ${person(query)}`;
    const rings =
      query === null ? [] : [legendKey("ring query-ring", name), legendKey("ring", "its positives")];
    if (colour === "ap") return [legendScale(viridis, "AP 0", "100"), ...rings];
    const cameras = [...order.camera].map(([camera, i]) => legendKey("swatch", cameraName(camera), few(i)));
    const identities = `${order.person.size} identities by hue and shape; point at one to see it alone`;
    return [...(colour === "camera" ? cameras : [identities]), ...rings];
  }

  /** The map is of the first condition, whichever is shown elsewhere. */
  function note() {
    const [first] = REPORT.summary.conditions;
    const condition = conditionNow();
    const name = first.missing.length ? conditionName(first) : "all modalities";
    const other = condition === first ? "" : ` (not ${conditionName(condition)})`;
    return `t-SNE of the test features: ${patternNow()}, ${name}${other}`;
  }

  function refresh() {
    const { pattern, colour } = REPORT.state.values;
    const points = (REPORT.summary.feature_map || {})[pattern];
    parts.empty.hidden = Boolean(points);
    parts.note.textContent = note();
    parts.legend.replaceChildren(...legendParts());
    markChoice(parts.colours, colour);
    if (points && points !== scatter.points) scatter.setPoints(points);
    scatter.setLook(look);
  }

  function onChange(changed) {
    const has = (name) => changed.has(name);
    if (["pattern", "condition", "cell", "query", "colour", "tab"].some(has)) refresh();
    // The AP comes with the ranking; where that is missing, the rank lists say so.
    if (has("pattern") || has("condition") || has("cell"))
      REPORT.data.load("ranking", REPORT.rankLists.rankingKey()).then(refresh, () => {});
  }

  function start(panel) {
    const { triples } = REPORT.summary;
    order = { person: numbered(triples.person), camera: numbered(triples.camera) };
    const label = "Feature map; the rank lists hold the same queries as text";
    parts = {
      canvas: h("canvas#map-canvas", { "role": "img", "aria-label": label }),
      colours: segmented({
        label: "Colour",
        id: "map-colour",
        options: Object.entries(COLOURS),
        value: REPORT.state.values.colour,
        onchange: (colour) => REPORT.state.set({ colour }),
      }),
      legend: h("div.legend.muted"),
      note: h("p.note.muted"),
      empty: h("p.message", "The report holds no feature map for this pattern."),
      tip: byId("point-tip"),
    };
    const zoom = h(
      "div.map-zoom",
      roundButton("", "+", "Enlarge", () => scatter.zoomAt(ZOOM_STEP)),
      roundButton("", "−", "Reduce", () => scatter.zoomAt(1 / ZOOM_STEP)),
      roundButton("", "⤢", "Show all (double click)", () => scatter.resetView()),
    );
    panel.append(
      h(
        "div.map",
        h("div.control-bar", h("span.muted", "Colour"), parts.colours, parts.legend),
        h("div.map-field", parts.canvas, parts.empty, parts.note, zoom),
      ),
    );
    scatter = new Scatter(parts.canvas, { onHover, onPick });
    REPORT.featureMap.scatter = scatter;
    REPORT.state.onChange(onChange);
    refresh();
  }

  REPORT.featureMap = { start };
})();
