"use strict";

/** Rank lists: the queries at the left, the chosen one with its ranked gallery triples at the right. */
(function () {
  const { element } = REPORT.dom;
  const { fixed, place, shortPlace, person, settingName } = REPORT.words;
  const { isRight, placeOf, resultOf } = REPORT.queries;
  const NO_FILTERS = { camera: "", scene: "", person: "", text: "", wrong: false };
  const FILTERS = [...Object.keys(NO_FILTERS), "sort"];

  let list;
  let pane;
  let overlay;
  let result = null; // of the query that is shown

  const sign = (right) =>
    element(
      "span",
      { "class": "sign", "role": "img", "aria-label": right ? "right" : "wrong" },
      right ? "✓" : "✗",
    );

  function hit(rank, row, distance) {
    const right = isRight(REPORT.state.values.query, row);
    return element(
      "li",
      {
        "class": `hit ${right ? "right" : "wrong"}`,
        "data-row": row,
        "data-rank": rank,
        "title": REPORT.summary.triples.names[row],
        "onclick": () => REPORT.compare.open(result, rank),
      },
      REPORT.triple.triple(row),
      element(
        "div",
        { class: "caption" },
        sign(right),
        element(
          "button",
          { "type": "button", "class": "rank", "aria-label": `Rank ${rank}: compare with the query` },
          `${rank}`,
        ),
        element("span", { class: "distance", title: "distance" }, distanceText(distance)),
        element("span", { class: "who" }, `id ${person(row)} · ${shortPlace(row)}`),
      ),
    );
  }

  const distanceText = (distance) => fixed(distance, 3);

  function rankedTriples() {
    const { rows, distances, match } = result;
    const hits = rows.map((row, i) => hit(i + 1, row, distances[i]));
    const beyond = match && match[0] > rows.length ? match : null;
    if (beyond) {
      const hidden = beyond[0] - rows.length - 1;
      hits.push(
        element(
          "li",
          { class: "gap" },
          element("span", { "aria-hidden": "true" }, "⋯"),
          hidden ? `${hidden} more wrong` : "",
          element("small", {}, "then the first right match"),
        ),
      );
      hits.push(hit(...beyond));
    }
    return element("ol", { class: "hits", id: "hits" }, hits);
  }

  const fact = (name, value, className) =>
    element("div", { class: className }, element("dt", {}, name), element("dd", {}, value));

  /** The switches in words, for paper. */
  function shownSettings() {
    const { patterns, settings } = REPORT.summary;
    const { pattern, setting } = REPORT.state.values;
    const feature = patterns.find(({ id }) => id === pattern).name;
    return `feature: ${feature} · modalities: ${settingName(settings.find(({ id }) => id === setting))}`;
  }

  function queryBlock() {
    const { row, ap, inp, first, skipped } = result;
    const { triples } = REPORT.summary;
    const scores = skipped
      ? element("p", { class: "skipped" }, "No right match in the gallery: this query is not scored.")
      : element(
          "dl",
          { class: "scores" },
          fact("AP", fixed(ap), "ap"),
          fact("INP", fixed(inp)),
          fact("first right match", `rank ${first}`),
        );
    return element(
      "div",
      { "class": "query", "id": "query", "data-row": row },
      REPORT.triple.triple(row, { labelled: true, focusable: Boolean(REPORT.summary.grid) }),
      element(
        "div",
        { class: "about" },
        element("p", { class: "print-only" }, shownSettings()),
        element("h2", {}, `Query · id ${person(row)}`, element("span", {}, place(row))),
        element("p", { class: "name" }, triples.names[row], element("small", {}, `row ${row}`)),
        scores,
        element(
          "div",
          { class: "first-hits" },
          element("span", {}, `first ${result.rows.length} ranks`),
          REPORT.queryList.hitStrip(result, result.rows.length),
          element(
            "span",
            { class: "strip-key" },
            element("i", { class: "right" }),
            "right",
            element("i", { class: "wrong" }),
            "wrong",
          ),
        ),
      ),
    );
  }

  function showQuery(ranking) {
    const { query } = REPORT.state.values;
    const at = query === null ? -1 : placeOf(query);
    if (at < 0) return showMessage("No query matches the filters.");
    const sameQuery = result && result.row === query;
    result = resultOf(ranking, at);
    pane.body.replaceChildren(queryBlock(), rankedTriples());
    pane.body.classList.remove("loading-ranking");
    if (!sameQuery) pane.scroller.scrollTop = 0;
    overlay.refresh();
  }

  function showMessage(text) {
    result = null;
    pane.body.replaceChildren(element("p", { class: "message" }, text));
  }

  function showFailure(error) {
    list.show([], { ap: [], first: [] });
    showMessage(`${error.message}. These ranked lists cannot be shown. Write the report again.`);
  }

  /** Shows the list, and a query if none was chosen. */
  function relist(ranking) {
    const { values, set } = REPORT.state;
    const items = REPORT.queries.listed(ranking, values);
    list.show(items, ranking);
    if (values.query === null && items.length) set({ query: REPORT.summary.queries[items[0]] });
  }

  function refreshAll() {
    const key = REPORT.data.rankingKey(REPORT.state.values);
    const { data } = REPORT.data.peek("ranking", key);
    if (data) {
      relist(data);
      return showQuery(data);
    }
    pane.body.classList.add("loading-ranking");
    const stillWanted = (then) => (value) =>
      key === REPORT.data.rankingKey(REPORT.state.values) && then(value);
    return REPORT.data.load("ranking", key).then(
      stillWanted(refreshAll),
      stillWanted((error) => {
        pane.body.classList.remove("loading-ranking");
        showFailure(error);
        REPORT.data.forget("ranking", key);
      }),
    );
  }

  const ranking = () => REPORT.data.peek("ranking", REPORT.data.rankingKey(REPORT.state.values)).data;

  function onChange(changed) {
    if (changed.has("pattern") || changed.has("setting")) return void refreshAll();
    const data = ranking();
    if (!data) return;
    if (FILTERS.some((name) => changed.has(name))) relist(data);
    if (changed.has("query")) {
      showQuery(data);
      list.revealCurrent();
    }
    if (changed.has("tab")) list.revealCurrent();
  }

  /** Opens the first, hardest query of an identity, with the list showing that identity alone. */
  function openIdentity(wanted) {
    const filters = { ...NO_FILTERS, person: wanted };
    const data = ranking();
    const [first] = data
      ? REPORT.queries.listed(data, { ...REPORT.state.values, ...filters, sort: "ap" })
      : [];
    const query = first === undefined ? REPORT.state.values.query : REPORT.summary.queries[first];
    REPORT.state.set({ ...filters, sort: "ap", query, tab: "ranks" });
  }

  function openQuery(row) {
    REPORT.state.set({ query: row, tab: "ranks" });
  }

  function start(panel) {
    const side = element("aside", { "class": "side", "aria-label": "Queries" });
    const control = element("div", { id: "overlay-control" });
    const body = element("div", { class: "pane-body with-patches", id: "pane-body" });
    pane = { body, scroller: element("div", { class: "pane" }, control, body) };
    panel.append(element("div", { class: "ranks" }, side, pane.scroller));
    list = new REPORT.queryList.QueryList(side);
    overlay = new REPORT.overlay.Overlay(body, control);
    control.hidden = !REPORT.summary.grid;
    overlay.refresh();
    REPORT.state.onChange(onChange);
    return refreshAll();
  }

  REPORT.rankLists = {
    start,
    openIdentity,
    openQuery,
    sign,
    distanceText,
    resetFilters: () => REPORT.state.set({ ...NO_FILTERS }),
    step: (step) => list.step(step),
    focusFilter: () => list.search.focus(),
    tokens: () => overlay.tokens,
    ranking,
  };
})();
