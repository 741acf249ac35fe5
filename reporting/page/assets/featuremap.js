"use strict";

/** The feature map: all test triples in the plane, coloured by what they are. */
(function () {
  const { element, segmented, markChoice, placeBeside } = REPORT.dom;
  const { fixed, cameraName, place, person, settingName } = REPORT.words;
  const { many, few, viridis, viridisGradient } = REPORT.colours;
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
    new Map([...new Set(column)].sort(REPORT.words.compareValues).map((value, i) => [value, i]));

  function apOf(row) {
    const ranking = REPORT.rankLists.ranking();
    const at = REPORT.queries.placeOf(row);
    return ranking && at >= 0 ? ranking.ap[at] : null;
  }

  function colourOf(row) {
    const { colour } = REPORT.state.values;
    const { triples } = REPORT.summary;
    if (colour === "camera") return few(order.camera.get(triples.camera[row]));
    if (colour === "person") return many(order.person.get(triples.person[row]));
    const ap = apOf(row);
    return ap === null || ap === undefined ? UNSCORED : viridis(ap / 100);
  }

  function markerOf(row) {
    const { colour } = REPORT.state.values;
    const { triples } = REPORT.summary;
    if (colour === "person") return order.person.get(triples.person[row]);
    return colour === "camera" ? order.camera.get(triples.camera[row]) : 0;
  }

  /** The identity under the pointer stands out; else the current query and its right matches are ringed. */
  function strengthOf(row) {
    const { query } = REPORT.state.values;
    if (hovered !== null && person(row) !== person(hovered)) return row === query ? "query" : "faded";
    if (row === query) return "query";
    return query !== null && person(row) === person(query) && isMatch(query, row) ? "match" : "normal";
  }

  /** A right match is of the same person and not left out by the protocol. */
  function isMatch(query, row) {
    const { protocol, triples } = REPORT.summary;
    const column = { camera: triples.camera, scene: triples.scene }[protocol];
    return !column || column[row] !== column[query];
  }

  const look = (row) => ({ colour: colourOf(row), marker: markerOf(row), strength: strengthOf(row) });

  function onHover(row, event) {
    if (row !== hovered) {
      hovered = row;
      parts.canvas.dataset.hovered = row === null ? "" : row;
      parts.canvas.style.cursor =
        row === null ? "grab" : REPORT.queries.placeOf(row) < 0 ? "default" : "pointer";
      scatter.setLook(look);
      fillTip(row);
    }
    if (row !== null) placeBeside(parts.tip, event.clientX, event.clientY);
  }

  function fillTip(row) {
    parts.tip.hidden = row === null;
    if (row === null) return;
    const ap = apOf(row);
    const isQuery = REPORT.queries.placeOf(row) >= 0;
    parts.tip.replaceChildren(
      REPORT.triple.triple(row),
      element("div", { class: "tip-head" }, element("b", {}, `id ${person(row)}`), ` ${place(row)}`),
      element("div", {}, isQuery ? `AP ${fixed(ap)} · click for its rank list` : "in the gallery only"),
    );
  }

  function onPick(row) {
    if (REPORT.queries.placeOf(row) < 0) return;
    onHover(null);
    REPORT.rankLists.openQuery(row);
  }

  function legendParts() {
    const { colour, query } = REPORT.state.values;
    const rings =
      query === null
        ? []
        : [
            element(
              "span",
              { class: "legend-key" },
              element("i", { class: "ring query-ring" }),
              `query #${query}, id ${person(query)}`,
            ),
            element("span", { class: "legend-key" }, element("i", { class: "ring" }), "its right matches"),
          ];
    if (colour === "ap") {
      return [
        element(
          "span",
          { class: "legend-scale" },
          "AP 0",
          element("i", { class: "scale", style: { background: viridisGradient() } }),
          "100",
        ),
        ...rings,
      ];
    }
    if (colour === "camera") {
      const cameras = [...order.camera].map(([camera, i]) =>
        element(
          "span",
          { class: "legend-key" },
          element("i", { class: "swatch", style: { background: few(i) } }),
          cameraName(camera),
        ),
      );
      return [...cameras, ...rings];
    }
    return [
      element("span", {}, `${order.person.size} identities by hue and shape; point at one to see it alone`),
      ...rings,
    ];
  }

  function note() {
    const { patterns, settings } = REPORT.summary;
    const { pattern, setting } = REPORT.state.values;
    const name = patterns.find(({ id }) => id === pattern).name;
    const other =
      setting === settings[0].id ? "" : ` (not ${settingName(settings.find(({ id }) => id === setting))})`;
    return `t-SNE of the test features: ${name}, all modalities${other}`;
  }

  function refresh() {
    const points = (REPORT.summary.feature_map || {})[REPORT.state.values.pattern];
    parts.empty.hidden = Boolean(points);
    parts.note.textContent = note();
    parts.legend.replaceChildren(...legendParts());
    markChoice(parts.colours, REPORT.state.values.colour);
    if (points !== scatter.points && points) scatter.setPoints(points);
    scatter.setLook(look);
  }

  /** The AP comes with the ranking; where that is missing, the rank lists say so. */
  function refreshWithRanking() {
    const key = REPORT.data.rankingKey(REPORT.state.values);
    REPORT.data.load("ranking", key).then(refresh, () => {});
  }

  function zoomButtons() {
    const button = (text, label, onclick) =>
      element(
        "button",
        { "type": "button", "class": "round", "aria-label": label, "title": label, onclick },
        text,
      );
    return element(
      "div",
      { class: "map-zoom" },
      button("+", "Enlarge", () => scatter.zoomAt(ZOOM_STEP)),
      button("−", "Reduce", () => scatter.zoomAt(1 / ZOOM_STEP)),
      button("⤢", "Show all (double click)", () => scatter.resetView()),
    );
  }

  function layOut() {
    const name = element("span", { class: "control-name" }, "Colour");
    const bar = element("div", { class: "map-bar" }, name, parts.colours, parts.legend);
    const field = element(
      "div",
      { class: "map-field" },
      parts.canvas,
      parts.empty,
      parts.note,
      zoomButtons(),
    );
    return element("div", { class: "map" }, bar, field);
  }

  function start(panel) {
    const { triples } = REPORT.summary;
    order = { person: numbered(triples.person), camera: numbered(triples.camera) };
    parts = {
      canvas: element("canvas", {
        "id": "map-canvas",
        "role": "img",
        "aria-label": "Feature map; the rank lists hold the same queries as text",
      }),
      colours: segmented({
        label: "Colour",
        id: "map-colour",
        options: COLOURS,
        value: REPORT.state.values.colour,
        onchange: (colour) => REPORT.state.set({ colour }),
      }),
      legend: element("div", { class: "legend" }),
      note: element("p", { class: "note" }),
      empty: element("p", { class: "message" }, "The report holds no feature map for this pattern."),
      tip: document.getElementById("point-tip"),
    };
    panel.append(layOut());
    scatter = new REPORT.scatter.Scatter(parts.canvas, { onHover, onPick });
    REPORT.featureMap.scatter = scatter;
    REPORT.state.onChange((changed) => {
      if (["pattern", "setting", "query", "colour", "tab"].some((name) => changed.has(name))) refresh();
      if (changed.has("pattern") || changed.has("setting")) refreshWithRanking();
    });
    refresh();
  }

  REPORT.featureMap = { start, refresh };
})();
