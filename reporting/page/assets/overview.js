"use strict";

/** The overview: what was measured, at a glance. */
(function () {
  const { h, card, byId } = REPORT.dom;
  const { fixed, conditionName, conditionNow, count, isNumber } = REPORT.words;
  const { lines, markedBars } = REPORT.charts;
  const { PATTERNS, PATTERN_DASHES } = REPORT.colours;
  const CMC_TICKS = [1, 5, 10, 20, 30, 40, 50];

  /** Colour and dashes of a pattern. The last one has the strong colour, also when it is the only one. */
  function lookOf(index) {
    const from = PATTERNS.length - Math.min(REPORT.summary.patterns.length, PATTERNS.length);
    const at = (index + from) % PATTERNS.length;
    return { colour: PATTERNS[at], dash: PATTERN_DASHES[at] };
  }

  function resultsCard() {
    const { values } = REPORT.state;
    const { queries = 0, skipped } = REPORT.tables.resultOf(values.condition, values.pattern);
    const without = skipped ? `, ${skipped} without a positive skipped` : "";
    const note = `${conditionName(conditionNow())} · ${count(queries, "query", "queries")}${without} · percent`;
    return card("card-results", "Results", note, REPORT.tables.resultTable(values));
  }

  function missingCard() {
    if (REPORT.summary.conditions.length < 2) return null;
    const choose = (condition) => REPORT.state.set({ condition });
    const note = "small: change against complete · click a row to switch the page";
    const table = REPORT.tables.missingTable(REPORT.state.values, choose);
    return card("card-missing", "Missing modalities", note, h("div.scroll-x", table));
  }

  function cmcCard() {
    const { condition, pattern } = REPORT.state.values;
    const series = REPORT.summary.patterns.map(({ id, name }, index) => {
      const { cmc = [] } = REPORT.tables.resultOf(condition, id);
      const points = cmc.map((value, i) => [i + 1, value]);
      return { name, ...lookOf(index), strong: id === pattern, points };
    });
    const lowest = Math.min(100, ...series.flatMap(({ points }) => points.map(([, value]) => value)));
    const chart = lines({
      series,
      xLabel: "rank",
      title: "CMC curves",
      xTicks: CMC_TICKS,
      yDomain: [Math.min(90, Math.floor(lowest / 10) * 10), 100],
      valueFormat: (value) => fixed(value),
    });
    const note = `${conditionName(conditionNow())} · % of queries with a positive up to the rank`;
    return card("card-cmc", "CMC", note, chart);
  }

  function trainingCard() {
    const { training } = REPORT.summary;
    if (!training) return null;
    const series = (key, name, look) => {
      const points = training.epoch.map((epoch, i) => [epoch, (training[key] || [])[i]]);
      return { name, ...look, points: points.filter(([, value]) => isNumber(value)) };
    };
    const chart = (title, digits, ...curves) =>
      lines({ series: curves, title, xLabel: "epoch", valueFormat: (value) => fixed(value, digits) });
    const note = `mean loss of each epoch; scores on the ${training.split || "test"} split, percent`;
    return card(
      "card-training",
      "Training",
      note,
      h(
        "div.two-charts",
        chart("Training loss", 3, series("loss", "loss", { colour: PATTERNS[2], strong: true })),
        chart(
          "mAP and Rank-1 over the epochs",
          1,
          series("mAP", "mAP", { colour: PATTERNS[2], strong: true, dots: true }),
          series("rank_1", "R-1", { colour: PATTERNS[1], dash: "6 3", dots: true }),
        ),
      ),
    );
  }

  function selectionCard() {
    const { selection, modalities } = REPORT.summary;
    if (!selection) return null;
    const { chance, best_possible: best, same_patches: same } = selection;
    const bars = modalities
      .filter((name) => isNumber(selection[name]))
      .map((name) => ({ name, value: selection[name], text: fixed(selection[name]) }));
    const marks = [
      { name: "chance", kind: "chance", value: chance, text: fixed(chance) },
      { name: "best possible", kind: "best", value: best, text: fixed(best) },
    ].filter(({ value }) => isNumber(value));
    if (same) {
      const text = bars.map(({ name }) => `${name} ${fixed(same[name])}`).join(", ");
      marks.push({ name: "the same patches in every image", kind: "same", value: same, text });
    }
    const note = "% of the kept patches";
    return card("card-selection", "Kept patches on the person", note, markedBars(bars, marks));
  }

  function anyToAnyCard() {
    const { any_to_any: matrix } = REPORT.summary;
    if (!matrix) return null;
    const open = (cell) => REPORT.state.set({ cell, tab: "ranks" });
    const mean = ({ mAP, cells }, what) => (cells ? `${what} ${fixed(mAP)} (mean of ${cells})` : "");
    const means = [
      mean(matrix.mean, "mAP of all cells"),
      mean(matrix.cross_modality_mean, "of those without a common modality"),
      `by chance ${fixed(matrix.chance.mAP)}`,
    ].filter(Boolean);
    const features = matrix.shared_space ? "original features in a shared space" : "original features";
    const note = `${features} · ${means.join(", ")} · click for the rank lists`;
    const content = REPORT.tables.anyToAnyMatrix(matrix, open);
    return card("card-any", "Any to any", note, content);
  }

  /** Two cards: scores by pair of cameras and by identity. */
  function breakdownCards() {
    const { breakdown, patterns, conditions } = REPORT.summary;
    const { camera_pairs: pairs = [], identities = [] } = breakdown || {};
    const note = `${conditionName(conditions[0])} · ${patterns[patterns.length - 1].name} · percent`;
    const open = (person) => REPORT.rankLists.openIdentity(person);
    return [
      pairs.length > 0 &&
        card("card-cameras", "Camera pairs", `mAP · ${note}`, REPORT.tables.cameraMatrix(pairs)),
      identities.length > 0 &&
        card(
          "card-identities",
          `Identities (${identities.length})`,
          `${note} · click for the rank lists`,
          REPORT.tables.identityTable(identities, open),
        ),
    ];
  }

  function costCard() {
    const { cost } = REPORT.summary;
    if (!cost || !cost.parts.length) return null;
    return card("card-cost", "Cost by part", "one triple", REPORT.tables.costTable(cost));
  }

  function originCard() {
    const { config } = REPORT.summary;
    const details = config && h("details", h("summary", "Configuration"), h("pre", config));
    return card("card-origin", "How it was made", null, details);
  }

  /** Cards that follow the switches. */
  const FOLLOWING = { "card-results": resultsCard, "card-missing": missingCard, "card-cmc": cmcCard };

  /** Marks the cell of the any-to-any matrix whose rank lists are shown. */
  function markCell() {
    for (const button of document.querySelectorAll("#any-matrix button")) {
      const isCurrent = button.dataset.cell === REPORT.state.values.cell;
      button.parentNode.classList.toggle("current", isCurrent);
    }
  }

  function refresh(changed) {
    if (changed.has("cell")) markCell();
    if (!changed.has("pattern") && !changed.has("condition")) return;
    for (const [id, build] of Object.entries(FOLLOWING)) {
      const old = byId(id);
      if (!old) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement.textContent : null;
      const made = build();
      old.replaceWith(made);
      // The button that was pressed is a new element now: keep the focus on its twin.
      if (focused)
        [...made.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
    }
  }

  /** Two columns of cards; if one is empty, the other gets the whole width. */
  function columns(left, right) {
    let sides = [left, right].map((cards) => cards.filter(Boolean));
    if (!sides[1].length && sides[0].length > 1) sides = [sides[0].slice(0, 1), sides[0].slice(1)];
    sides = sides.filter((cards) => cards.length);
    return (
      sides.length > 0 &&
      h(
        "div.columns",
        sides.map((cards) => h("div.stack", cards)),
      )
    );
  }

  function start(panel) {
    const [cameras, identities] = breakdownCards();
    panel.append(
      h(
        "div.cards",
        columns([resultsCard(), selectionCard()], [missingCard()]),
        anyToAnyCard(),
        columns([cmcCard()], [trainingCard()]),
        columns([cameras, costCard()], [identities]),
        originCard(),
      ),
    );
    markCell();
    REPORT.state.onChange(refresh);
  }

  REPORT.overview = { start };
})();
