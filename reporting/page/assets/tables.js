"use strict";

/** Tables of the overview: results, missing modalities, breakdowns, cost. */
(function () {
  const { h, table, columnHead, rowHead, number } = REPORT.dom;
  const { fixed, signed, compact, conditionName, count, compareValues, cameraName, NONE } = REPORT.words;
  const { few, tint, legendScale } = REPORT.colours;
  const METRICS = { mAP: "mAP", mINP: "mINP", rank_1: "R-1", rank_5: "R-5", rank_10: "R-10" };
  const IDENTITY_COLUMNS = { person: "identity", queries: "queries", rank_1: "R-1", mAP: "mAP" };
  const COSTS = [
    { key: "gflops", label: "Computation", unit: "GFLOPs", heading: "GFLOPs" },
    { key: "params_m", label: "Parameters", unit: "M", heading: "M parameters" },
  ];

  const numberHead = (text, className = "") => columnHead(text, { class: `number ${className}` });

  const resultOf = (condition, pattern) =>
    REPORT.summary.results.find((one) => one.condition === condition && one.pattern === pattern) || {};

  /** Patterns × metrics for one condition, then the controls. */
  function resultTable({ condition, pattern }) {
    const { patterns, controls } = REPORT.summary;
    const metrics = (result) => Object.keys(METRICS).map((key) => number(fixed(result[key])));
    const rows = patterns.map(({ id, name }) =>
      h(
        "tr",
        { "class": id === pattern && "current", "data-pattern": id },
        rowHead(name),
        metrics(resultOf(condition, id)),
      ),
    );
    const others = (controls || []).map((control) =>
      h("tr.control", rowHead(control.name, h("small", "control")), metrics(control)),
    );
    const heads = Object.values(METRICS).map((name) => numberHead(name));
    return table("table#result-table.figures", [[columnHead("feature"), heads]], rows, others);
  }

  function conditionCells(condition, { id }, pattern) {
    const [complete] = REPORT.summary.conditions;
    const result = resultOf(condition.id, id);
    const whole = resultOf(complete.id, id);
    return ["mAP", "rank_1"].map((metric, i) =>
      number(
        [fixed(result[metric]), condition !== complete && h("small", signed(result[metric] - whole[metric]))],
        `${i ? "" : "group"} ${id === pattern ? "current-column" : ""}`,
      ),
    );
  }

  /** The mean of the conditions under which something is missing. */
  function meanRow(conditions, patterns, pattern) {
    const mean = (metric, id) =>
      conditions.reduce((sum, one) => sum + resultOf(one.id, id)[metric], 0) / conditions.length;
    const cells = patterns.map(({ id }) =>
      ["mAP", "rank_1"].map((metric, i) =>
        number(fixed(mean(metric, id)), `${i ? "" : "group"} ${id === pattern ? "current-column" : ""}`),
      ),
    );
    return h("tr#missing-mean", rowHead(`mean of ${conditions.length}`), cells);
  }

  /** Conditions × patterns: mAP and Rank-1, with the difference to the first condition. */
  function missingTable({ condition, pattern }, choose) {
    const { conditions, patterns } = REPORT.summary;
    const rows = conditions.map((one) =>
      h(
        "tr",
        { "class": one.id === condition && "current", "data-condition": one.id },
        rowHead(h("button.link", { onclick: () => choose(one.id) }, conditionName(one))),
        patterns.map((each) => conditionCells(one, each, pattern)),
      ),
    );
    if (conditions.length > 2) rows.push(meanRow(conditions.slice(1), patterns, pattern));
    const groups = patterns.map(({ name }) =>
      columnHead(name, { colspan: 2, scope: "colgroup", class: "group span" }),
    );
    const metrics = patterns.map(() => [numberHead("mAP", "group"), numberHead("R-1")]);
    const heads = [
      [h("td"), groups],
      [columnHead("modalities"), metrics],
    ];
    return table("table#missing-table.figures", heads, rows);
  }

  /** Query camera × gallery camera, mAP as tint. */
  function cameraMatrix(pairs) {
    const ordered = (key) => [...new Set(pairs.map((pair) => pair[key]))].sort(compareValues);
    const columns = ordered("gallery");
    const cell = (query, gallery) => {
      const pair = pairs.find((one) => one.query === query && one.gallery === gallery);
      if (!pair || !pair.queries) return h("td.no-pair", NONE);
      const queries = `${count(pair.queries, "query", "queries")} of ${cameraName(query)}`;
      return h(
        "td",
        {
          style: { background: tint(pair.mAP / 100) },
          title: `${queries}, gallery of ${cameraName(gallery)}`,
        },
        h("b", fixed(pair.mAP)),
        h("small", `R-1 ${fixed(pair.rank_1)}`),
      );
    };
    const rows = ordered("query").map((query) =>
      h(
        "tr",
        rowHead(cameraName(query)),
        columns.map((gallery) => cell(query, gallery)),
      ),
    );
    const heads = ["query ╲ gallery", ...columns.map(cameraName)].map((name) => columnHead(name));
    return [
      h("div.scroll-x", table("table#camera-matrix.matrix", [heads], rows)),
      h("div#camera-legend.legend.muted", legendScale(tint, "mAP 0", "100 %")),
    ];
  }

  /** Modalities of the query × of the gallery, mAP as tint; a click opens the rank lists. */
  function anyToAnyMatrix({ cells }, open) {
    const name = (side) => side.join(" + ");
    const sides = [...new Set(cells.map(({ query }) => name(query)))];
    const cell = (query, gallery) => {
      const one = cells.find((each) => name(each.query) === query && name(each.gallery) === gallery);
      if (!one || one.mAP === undefined) return h("td.no-pair", NONE);
      const shared = one.query.some((modality) => one.gallery.includes(modality));
      return h(
        "td",
        {
          class: shared ? "" : "cross",
          style: { background: tint(one.mAP / 100) },
          title: `query ${query}, gallery ${gallery}${shared ? "" : ": no modality in common"}`,
        },
        h("button.link", { "data-cell": one.id, "onclick": () => open(one.id) }, fixed(one.mAP)),
        h("small", `R-1 ${fixed(one.rank_1)}`),
      );
    };
    const rows = sides.map((query) =>
      h(
        "tr",
        rowHead(query),
        sides.map((gallery) => cell(query, gallery)),
      ),
    );
    const heads = ["query ╲ gallery", ...sides].map((text) => columnHead(text));
    return [
      h("div.scroll-x", table("table#any-matrix.matrix", [heads], rows)),
      h("div.legend.muted", legendScale(tint, "mAP 0", "100 %"), h("span.cross-key", "no modality in common")),
    ];
  }

  function identityRow(identity, open) {
    const width = `${Math.max(0, identity.mAP || 0)}%`;
    return h(
      "tr",
      { "data-person": identity.person, "onclick": () => open(identity.person) },
      rowHead(h("button.link", String(identity.person))),
      [String(identity.queries), fixed(identity.rank_1), fixed(identity.mAP)].map((text) => number(text)),
      h("td.bar-cell", { "aria-hidden": "true" }, h("i.cell-bar", { style: { width } })),
    );
  }

  /** Identities, hardest first; a click on a heading sorts by it, a click on a row opens its queries. */
  function identityTable(identities, open) {
    const order = { key: "mAP", down: false };
    const heads = Object.entries(IDENTITY_COLUMNS).map(([key, name]) =>
      columnHead(h("button.sort", { onclick: () => sortBy(key) }, name), {
        "class": key !== "person" && "number",
        "data-key": key,
      }),
    );
    const body = h("tbody");
    const show = () => {
      const sign = order.down ? -1 : 1;
      const sorted = [...identities].sort(
        (a, b) => sign * (a[order.key] - b[order.key]) || compareValues(a.person, b.person),
      );
      body.replaceChildren(...sorted.map((identity) => identityRow(identity, open)));
      for (const head of heads) {
        const direction = order.down ? "descending" : "ascending";
        head.setAttribute("aria-sort", head.dataset.key === order.key ? direction : "none");
      }
    };
    const sortBy = (key) => {
      order.down = order.key === key && !order.down;
      order.key = key;
      show();
    };
    show();
    const identityTable = table("table#identity-table.figures.identities", [[heads, h("td")]]);
    identityTable.append(body);
    return h("div.scroll-y", identityTable);
  }

  const share = (value, total) => (total ? `${fixed((100 * value) / total)} %` : NONE);

  /** One bar, divided by the shares of the parts. */
  function costBar(cost, { key, label, unit }) {
    const textOf = (part) => `${part.name} ${compact(part[key])} ${unit} (${share(part[key], cost[key])})`;
    const pieces = cost.parts.map((part, i) =>
      h("i", {
        title: textOf(part),
        hidden: !(part[key] > 0),
        style: { "flex-grow": String(part[key] / (cost[key] || 1)), "background": few(i) },
      }),
    );
    return h(
      "div.stacked",
      h("div.stacked-head", h("span", label), h("b", `${compact(cost[key])} ${unit}`)),
      h(
        "div.stacked-bar",
        { "role": "img", "aria-label": `${label}: ${cost.parts.map(textOf).join(", ")}` },
        pieces,
      ),
    );
  }

  /** The cost of the model by part: two bars and the numbers. */
  function costTable(cost) {
    const rows = cost.parts.map((part, i) =>
      h(
        "tr",
        rowHead(h("i.swatch", { style: { background: few(i) } }), part.name),
        COSTS.map(({ key }) => number([compact(part[key]), h("small", share(part[key], cost[key]))])),
      ),
    );
    const heads = [columnHead("part"), COSTS.map(({ heading }) => numberHead(heading))];
    return [
      COSTS.map((measure) => costBar(cost, measure)),
      table("table#cost-table.figures.compact", [heads], rows),
    ];
  }

  REPORT.tables = { resultTable, missingTable, anyToAnyMatrix, cameraMatrix, identityTable, costTable, resultOf };
})();
