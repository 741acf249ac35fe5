"use strict";

/** The feature map: all test triples in the plane, coloured by what they are. */
(function () {
  const { h, byId, segmented, markChoice, placeBeside, roundButton } = REPORT.dom;
  const { fixed, cameraName, cameraOf, person, conditionName, conditionNow, patternNow, compareValues } =
    REPORT.words;
  const { many, few, viridis, legendKey, legendScale } = REPORT.colours;
  const ZOOM_STEP = 1.6;
  const UNSCORED = "#9aa3af";
  const COLOURS = [
    ["person", "Identity"],
    ["camera", "Camera"],
    ["ap", "AP"],
  ];

  let scatter;
  let parts; // the elements that change
  let hovered = null;
  let order; // identity, camera → its number among those of the set

  const numbered = (column) =>
    new Map([...new Set(column)].sort(compareValues).map((value, i) => [value, i]));

  const isQuery = (row) => REPORT.queryList.indexOf(row) >= 0;

  const apOf = (row) => REPORT.rankLists.ranking()?.ap[REPORT.queryList.indexOf(row)];

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

  /** A positive is of the same person and not left out by the protocol. */
  function isPositive(query, row) {
    const column = REPORT.summary.triples[REPORT.summary.protocol];
    return person(row) === person(query) && (!column || column[row] !== column[query]);
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
    const rings =
      query === null
        ? []
        : [
            legendKey("ring query-ring", `query #${query}, id ${person(query)}`),
            legendKey("ring", "its positives"),
          ];
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
    if (["pattern", "condition", "query", "colour", "tab"].some(has)) refresh();
    // The AP comes with the ranking; where that is missing, the rank lists say so.
    if (has("pattern") || has("condition"))
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
        options: COLOURS,
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
    scatter = new REPORT.scatter.Scatter(parts.canvas, { onHover, onPick });
    REPORT.featureMap.scatter = scatter;
    REPORT.state.onChange(onChange);
    refresh();
  }

  REPORT.featureMap = { start };
})();
