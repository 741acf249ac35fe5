"use strict";

/** Tables of the overview: results, missing modalities, breakdowns. */
(function () {
  const { element } = REPORT.dom;
  const { fixed, signed, settingName, count, compareValues, cameraName } = REPORT.words;
  const METRICS = [
    ["mAP", "mAP"],
    ["mINP", "mINP"],
    ["rank_1", "R-1"],
    ["rank_5", "R-5"],
    ["rank_10", "R-10"],
  ];

  const heading = (text, attributes) => element("th", { scope: "col", ...attributes }, text);
  const number = (text, attributes) => element("td", { class: "number", ...attributes }, text);

  const resultOf = (setting, pattern) =>
    REPORT.summary.results.find((result) => result.setting === setting && result.pattern === pattern);

  /** Patterns × metrics for one setting, then the controls. */
  function resultTable({ setting, pattern }) {
    const { patterns, controls } = REPORT.summary;
    const rows = patterns.map(({ id, name }) => {
      const result = resultOf(setting, id) || {};
      return element(
        "tr",
        { "class": id === pattern ? "current" : null, "data-pattern": id },
        element("th", { scope: "row" }, name),
        METRICS.map(([key]) => number(fixed(result[key]))),
      );
    });
    const others = (controls || []).map((control) =>
      element(
        "tr",
        { class: "control" },
        element("th", { scope: "row" }, control.name, element("small", {}, "control")),
        METRICS.map(([key]) => number(fixed(control[key]))),
      ),
    );
    return element(
      "table",
      { class: "figures", id: "result-table" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          heading("feature"),
          METRICS.map(([, name]) => heading(name, { class: "number" })),
        ),
      ),
      element("tbody", {}, rows),
      others.length ? element("tbody", {}, others) : null,
    );
  }

  function settingCells(setting, { id }, pattern) {
    const { settings } = REPORT.summary;
    const result = resultOf(setting.id, id) || {};
    const whole = resultOf(settings[0].id, id) || {};
    return ["mAP", "rank_1"].map((metric, i) =>
      number(
        [
          fixed(result[metric]),
          setting === settings[0] ? null : element("small", {}, signed(result[metric] - whole[metric])),
        ],
        { class: `number ${i ? "" : "group"} ${id === pattern ? "current-column" : ""}` },
      ),
    );
  }

  /** Settings × patterns: mAP and Rank-1, with the difference to the first setting. */
  function missingTable({ setting, pattern }, choose) {
    const { settings, patterns } = REPORT.summary;
    const rows = settings.map((one) =>
      element(
        "tr",
        { "class": one.id === setting ? "current" : null, "data-setting": one.id },
        element(
          "th",
          { scope: "row" },
          element(
            "button",
            { class: "link", type: "button", onclick: () => choose(one.id) },
            settingName(one),
          ),
        ),
        patterns.map((each) => settingCells(one, each, pattern)),
      ),
    );
    return element(
      "table",
      { class: "figures", id: "missing-table" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("td"),
          patterns.map(({ name }) => heading(name, { colspan: 2, scope: "colgroup", class: "group span" })),
        ),
        element(
          "tr",
          {},
          heading("modalities"),
          patterns.map(() => [
            heading("mAP", { class: "number group" }),
            heading("R-1", { class: "number" }),
          ]),
        ),
      ),
      element("tbody", {}, rows),
    );
  }

  /** Query camera × gallery camera, mAP as tint. */
  function cameraMatrix(pairs) {
    const ordered = (key) => [...new Set(pairs.map((pair) => pair[key]))].sort(compareValues);
    const columns = ordered("gallery");
    const cell = (query, gallery) => {
      const pair = pairs.find((one) => one.query === query && one.gallery === gallery);
      if (!pair || !pair.queries) return element("td", { class: "no-pair" }, "–");
      return element(
        "td",
        {
          style: { background: REPORT.colours.tint(pair.mAP / 100) },
          title: `${count(pair.queries, "query", "queries")} of ${cameraName(query)}, gallery of ${cameraName(gallery)}`,
        },
        element("b", {}, fixed(pair.mAP)),
        element("small", {}, `R-1 ${fixed(pair.rank_1)}`),
      );
    };
    const legend = element(
      "div",
      { class: "legend legend-scale", id: "camera-legend" },
      "mAP 0",
      element("i", { class: "scale", style: { background: REPORT.colours.tintGradient() } }),
      "100 %",
    );
    const table = element(
      "div",
      { class: "scroll-x" },
      element(
        "table",
        { class: "matrix", id: "camera-matrix" },
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            heading("query ╲ gallery"),
            columns.map((camera) => heading(cameraName(camera))),
          ),
        ),
        element(
          "tbody",
          {},
          ordered("query").map((query) =>
            element(
              "tr",
              {},
              element("th", { scope: "row" }, cameraName(query)),
              columns.map((gallery) => cell(query, gallery)),
            ),
          ),
        ),
      ),
    );
    return element("div", {}, table, legend);
  }

  const IDENTITY_COLUMNS = [
    ["person", "identity"],
    ["queries", "queries"],
    ["rank_1", "R-1"],
    ["mAP", "mAP"],
  ];

  function identityRow(identity, open) {
    const width = `${Math.max(0, identity.mAP || 0)}%`;
    return element(
      "tr",
      { "data-person": identity.person, "onclick": () => open(identity.person) },
      element(
        "th",
        { scope: "row" },
        element("button", { class: "link", type: "button" }, String(identity.person)),
      ),
      number(String(identity.queries)),
      number(fixed(identity.rank_1)),
      number(fixed(identity.mAP)),
      element(
        "td",
        { "class": "bar-cell", "aria-hidden": "true" },
        element("i", { class: "cell-bar", style: { width } }),
      ),
    );
  }

  /** Identities, hardest first; a click on a heading sorts by it, a click on a row opens its queries. */
  function identityTable(identities, open) {
    const order = { key: "mAP", down: false };
    const body = element("tbody");
    const heads = IDENTITY_COLUMNS.map(([key, name]) =>
      heading(element("button", { type: "button", class: "sort", onclick: () => sortBy(key) }, name), {
        "class": key === "person" ? null : "number",
        "data-key": key,
      }),
    );
    const show = () => {
      const sign = order.down ? -1 : 1;
      const sorted = [...identities].sort(
        (a, b) => sign * (a[order.key] - b[order.key]) || compareValues(a.person, b.person),
      );
      body.replaceChildren(...sorted.map((identity) => identityRow(identity, open)));
      heads.forEach((head) =>
        head.setAttribute(
          "aria-sort",
          head.dataset.key !== order.key ? "none" : order.down ? "descending" : "ascending",
        ),
      );
    };
    const sortBy = (key) => {
      order.down = order.key === key ? !order.down : false;
      order.key = key;
      show();
    };
    show();
    return element(
      "div",
      { class: "scroll-y" },
      element(
        "table",
        { class: "figures identities", id: "identity-table" },
        element("thead", {}, element("tr", {}, heads, element("td"))),
        body,
      ),
    );
  }

  REPORT.tables = { resultTable, missingTable, cameraMatrix, identityTable, resultOf };
})();
