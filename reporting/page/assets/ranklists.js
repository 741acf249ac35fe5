"use strict";

/** Rank lists: the queries at the left, the chosen one with its ranked gallery triples at the right. */
(function () {
  const { h, byId, fact, openDialog, closeByClickBeside, roundButton } = REPORT.dom;
  const { fixed, cameraOf, person, conditionName, conditionNow, patternNow, cellNow, cellName } = REPORT.words;
  const { hitStrip, indexOf, isPositive, listed, resultOf, NO_FILTERS } = REPORT.queryList;

  let list;
  let pane;
  let overlay;
  let result = null; // of the query that is shown
  let dialog; // the enlarged view
  let dialogBody;
  let dialogOverlay;
  let shown = null; // in the enlarged view: {result, ranks: [[rank, row, distance]], at}

  const signName = (positive) => (positive ? "positive" : "negative");
  const sign = (positive) =>
    h("span.sign", { "role": "img", "aria-label": signName(positive) }, positive ? "✓" : "✗");

  /** What is shown of a query: [rank, row, distance], the first positive last if it lies beyond the list. */
  function ranksOf({ rows, distances, match }) {
    const ranks = rows.map((row, i) => [i + 1, row, distances[i]]);
    return match && match[0] > rows.length ? [...ranks, match] : ranks;
  }

  function hit([rank, row, distance]) {
    const positive = isPositive(result.row, row);
    return h(
      "li.hit",
      {
        "class": signName(positive),
        "data-row": row,
        "data-rank": rank,
        "title": REPORT.summary.triples.names[row],
        "onclick": () => enlarge(result, rank),
      },
      REPORT.triple.triple(row, { side: "gallery" }),
      h(
        "div.caption",
        sign(positive),
        h("button.rank", { "aria-label": `Rank ${rank}: compare with the query` }, `${rank}`),
        h("span.distance.muted", { title: "distance" }, fixed(distance, 3)),
        h("span.who.muted", `id ${person(row)} · ${cameraOf(row, { short: true })}`),
      ),
    );
  }

  function rankedTriples() {
    const hits = ranksOf(result).map(hit);
    const { length } = result.rows;
    if (hits.length > length) {
      const hidden = result.match[0] - length - 1;
      const text = hidden ? `${hidden} more negative` : "";
      const gap = h("li.gap.muted", h("span", { "aria-hidden": "true" }, "⋯"), text);
      gap.append(h("small", "then the first positive"));
      hits.splice(length, 0, gap);
    }
    return h("ol#hits.hits", hits);
  }

  const leaveButton = () =>
    h("button.link#leave-matrix", { onclick: () => REPORT.state.set({ cell: "" }) }, "leave the matrix");

  function queryBlock() {
    const { row, rows, ap, inp, first, skipped } = result;
    const scores = skipped
      ? h("p.skipped", "No positive in the gallery: this query is not scored.")
      : h(
          "dl.scores",
          fact("AP", fixed(ap)),
          fact("INP", fixed(inp)),
          fact("first positive", `rank ${first}`),
        );
    const cell = cellNow();
    const switches = cell
      ? `any-to-any: ${cellName(cell)}`
      : `feature: ${patternNow()} · modalities: ${conditionName(conditionNow())}`;
    return h(
      "div#query.query",
      { "data-row": row },
      REPORT.triple.triple(row, { labelled: true, focusable: Boolean(REPORT.summary.grid) }),
      h(
        "div.about",
        h("p", { class: cell ? "" : "print-only" }, switches, cell && [" · ", leaveButton()]),
        h("h2", `Query · id ${person(row)}`, h("span", cameraOf(row))),
        h("p.name", REPORT.summary.triples.names[row], h("small", `row ${row}`)),
        scores,
        h(
          "div.first-hits",
          h("span.muted", `first ${rows.length} ranks`),
          hitStrip(result, rows.length),
          h("span.strip-key.muted", h("i.positive"), "positive", h("i.negative"), "negative"),
        ),
      ),
    );
  }

  function showQuery(ranking) {
    const { query } = REPORT.state.values;
    const index = query === null ? -1 : indexOf(query);
    if (index < 0) return showMessage("No query matches the filters.");
    const sameQuery = result && result.row === query;
    result = resultOf(ranking, index);
    pane.body.replaceChildren(queryBlock(), rankedTriples());
    pane.body.classList.remove("loading-ranking");
    if (!sameQuery) pane.scroller.scrollTop = 0;
    overlay.refresh();
  }

  function showMessage(text) {
    result = null;
    pane.body.replaceChildren(h("p.message", text));
  }

  function showFailure(error) {
    list.show([], { ap: [], first: [] });
    showMessage(`${error.message}. These ranked lists cannot be shown. Write the report again.`);
  }

  /** Shows the list, and a query if none was chosen. */
  function relist(ranking) {
    const { values, set } = REPORT.state;
    const items = listed(ranking, values);
    list.show(items, ranking);
    if (values.query === null && items.length) set({ query: REPORT.summary.queries[items[0]] });
  }

  function rankingKey() {
    const { condition, pattern } = REPORT.state.values;
    const cell = cellNow();
    return cell ? `any_${cell.ranking}` : `${condition}_${pattern}`;
  }

  /** The ranking of the present condition and pattern, or cell of the matrix, if it is loaded. */
  const ranking = () => REPORT.data.peek("ranking", rankingKey()).data;

  function refreshAll() {
    const data = ranking();
    if (data) {
      relist(data);
      return showQuery(data);
    }
    const key = rankingKey();
    const stillWanted = (then) => (value) => key === rankingKey() && then(value);
    pane.body.classList.add("loading-ranking");
    return REPORT.data.load("ranking", key).then(
      stillWanted(refreshAll),
      stillWanted((error) => {
        pane.body.classList.remove("loading-ranking");
        showFailure(error);
        REPORT.data.forget("ranking", key);
      }),
    );
  }

  function onChange(changed) {
    if (["pattern", "condition", "cell"].some((name) => changed.has(name))) return void refreshAll();
    const data = ranking();
    if (!data) return;
    if (["sort", ...Object.keys(NO_FILTERS)].some((name) => changed.has(name))) relist(data);
    if (changed.has("query")) showQuery(data);
    if (changed.has("query") || changed.has("tab")) list.revealCurrent();
  }

  /** Opens the hardest query of an identity, with the list showing that identity alone. */
  function openIdentity(wanted) {
    const { values, set } = REPORT.state;
    const changes = { ...NO_FILTERS, person: wanted, sort: "ap", cell: "" };
    const data = ranking();
    const [first] = data ? listed(data, { ...values, ...changes }) : [];
    set({ ...changes, query: REPORT.summary.queries[first] ?? values.query, tab: "ranks" });
  }

  /* The enlarged view: the query and one gallery triple side by side. */

  function side(row, which, ...heading) {
    return h(
      "figure.compare-side",
      { "data-row": row },
      h("figcaption", h("h3", heading), h("span.muted", `id ${person(row)} · ${cameraOf(row)}`)),
      REPORT.triple.triple(row, { labelled: true, focusable: Boolean(REPORT.summary.grid), side: which }),
      h("p.name", REPORT.summary.triples.names[row]),
    );
  }

  function drawEnlarged() {
    const { result, ranks, at } = shown;
    const [rank, row, distance] = ranks[at];
    const positive = isPositive(result.row, row);
    const name = signName(positive);
    const verdict = h(
      "span.verdict",
      { class: name },
      sign(positive),
      `${name} · distance ${fixed(distance, 3)}`,
    );
    dialogBody.replaceChildren(side(result.row, "query", "Query"), side(row, "gallery", `Rank ${rank} `, verdict));
    dialog.dataset.rank = rank;
    dialog.querySelector(".previous").disabled = at === 0;
    dialog.querySelector(".next").disabled = at === ranks.length - 1;
    dialogOverlay.refresh();
  }

  function enlarge(result, rank) {
    const ranks = ranksOf(result);
    shown = { result, ranks, at: ranks.findIndex(([one]) => one === rank) };
    drawEnlarged();
    openDialog(dialog);
  }

  /** Shows the neighbour in rank. */
  function stepRank(ranks) {
    const at = Math.min(shown.ranks.length - 1, Math.max(0, shown.at + ranks));
    if (at === shown.at) return;
    shown.at = at;
    drawEnlarged();
  }

  function buildEnlarged() {
    dialog = byId("compare");
    const control = h("div");
    dialogBody = h("div.compare-body.with-patches");
    const buttons = h(
      "div.compare-buttons",
      roundButton("previous", "←", "Previous rank (←)", () => stepRank(-1)),
      roundButton("next", "→", "Next rank (→)", () => stepRank(1)),
      roundButton("close", "×", "Close (Esc)", () => dialog.close()),
    );
    dialog.append(h("div.compare-bar", control, buttons), dialogBody);
    dialogOverlay = new REPORT.overlay.Overlay(dialogBody, control);
    closeByClickBeside(dialog);
    dialog.addEventListener("close", () => {
      REPORT.patchTip.hide();
      dialogBody.replaceChildren();
    });
  }

  function start(panel) {
    const side = h("aside.side", { "aria-label": "Queries" });
    const control = h("div#overlay-control");
    const body = h("div#pane-body.pane-body.with-patches");
    pane = { body, scroller: h("div.pane", control, body) };
    panel.append(h("div.ranks", side, pane.scroller));
    list = new REPORT.queryList.QueryList(side);
    overlay = new REPORT.overlay.Overlay(body, control);
    overlay.refresh();
    buildEnlarged();
    REPORT.state.onChange(onChange);
    return refreshAll();
  }

  const openQuery = (row) => REPORT.state.set({ query: row, tab: "ranks" });
  const step = (step) => list.step(step);
  const focusFilter = () => list.search.focus();
  const isEnlarged = () => dialog.open;
  /** How many aggregated tokens the images in front have. */
  const tokens = () => (isEnlarged() ? dialogOverlay : overlay).tokens;

  REPORT.rankLists = { start, openIdentity, openQuery, step, stepRank, focusFilter, isEnlarged, tokens };
  Object.assign(REPORT.rankLists, { ranking, rankingKey });
})();
