"use strict";

/** The cost of the model by part: two bars and the numbers. */
(function () {
  const { element, card } = REPORT.dom;
  const { fixed, compact, NONE } = REPORT.words;
  const { few } = REPORT.colours;
  const MEASURES = [
    { key: "gflops", label: "Computation", unit: "GFLOPs", heading: "GFLOPs" },
    { key: "params_m", label: "Parameters", unit: "M", heading: "M parameters" },
  ];

  const share = (value, total) => (total ? `${fixed((100 * value) / total)} %` : NONE);

  function bar(cost, { key, label, unit }) {
    const parts = cost.parts.map((part, i) => ({
      value: part[key],
      colour: few(i),
      text: `${part.name} ${compact(part[key])} ${unit} (${share(part[key], cost[key])})`,
    }));
    return REPORT.charts.stackedBar(label, `${compact(cost[key])} ${unit}`, parts);
  }

  function partRow(cost, part, i) {
    const swatch = element("i", { class: "swatch", style: { background: few(i) } });
    const cells = MEASURES.map(({ key }) =>
      element(
        "td",
        { class: "number" },
        compact(part[key]),
        element("small", {}, share(part[key], cost[key])),
      ),
    );
    return element("tr", {}, element("th", { scope: "row" }, swatch, part.name), cells);
  }

  function table(cost) {
    const headings = MEASURES.map(({ heading }) => element("th", { scope: "col", class: "number" }, heading));
    return element(
      "table",
      { class: "figures compact", id: "cost-table" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "part"), headings)),
      element(
        "tbody",
        {},
        cost.parts.map((part, i) => partRow(cost, part, i)),
      ),
    );
  }

  /** The card of the overview, or null if nothing was counted. */
  function costCard() {
    const { cost } = REPORT.summary;
    if (!cost || !cost.parts.length) return null;
    const bars = MEASURES.map((measure) => bar(cost, measure));
    return card("Cost by part", { note: "one triple", id: "card-cost" }, bars, table(cost));
  }

  REPORT.cost = { costCard };
})();
