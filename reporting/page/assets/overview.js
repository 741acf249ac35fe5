"use strict";

/** The overview: what was measured, at a glance. */
(function () {
  const { element, card } = REPORT.dom;
  const { fixed, settingName, count, isNumber } = REPORT.words;
  const { lines, markedBars } = REPORT.charts;
  const { PATTERNS, PATTERN_DASHES } = REPORT.colours;
  const CMC_TICKS = [1, 5, 10, 20, 30, 40, 50];

  const settingNow = () => REPORT.summary.settings.find(({ id }) => id === REPORT.state.values.setting);

  function lookOf(place) {
    const { length } = REPORT.summary.patterns;
    // The last pattern has the strong colour, also when it is the only one.
    const from = PATTERNS.length - Math.min(length, PATTERNS.length);
    return {
      colour: PATTERNS[(place + from) % PATTERNS.length],
      dash: PATTERN_DASHES[(place + from) % PATTERNS.length],
    };
  }

  function resultsCard() {
    const { values } = REPORT.state;
    const result = REPORT.tables.resultOf(values.setting, values.pattern) || {};
    const skipped = result.skipped ? `, ${result.skipped} without a right match skipped` : "";
    const queries = count(result.queries || 0, "query", "queries");
    const note = `${settingName(settingNow())} · ${queries}${skipped} · percent`;
    return card("Results", { note, id: "card-results" }, REPORT.tables.resultTable(values));
  }

  function missingCard() {
    if (REPORT.summary.settings.length < 2) return null;
    const table = REPORT.tables.missingTable(REPORT.state.values, (setting) => REPORT.state.set({ setting }));
    return card(
      "Missing modalities",
      {
        note: "small: change against complete · click a row to switch the page",
        id: "card-missing",
      },
      element("div", { class: "scroll-x" }, table),
    );
  }

  function cmcCard() {
    const { setting, pattern } = REPORT.state.values;
    const series = REPORT.summary.patterns.map(({ id, name }, place) => {
      const { cmc = [] } = REPORT.tables.resultOf(setting, id) || {};
      return {
        name,
        ...lookOf(place),
        strong: id === pattern,
        points: cmc.map((value, i) => [i + 1, value]),
      };
    });
    const lowest = Math.min(100, ...series.flatMap(({ points }) => points.map(([, value]) => value)));
    return card(
      "CMC",
      {
        note: `${settingName(settingNow())} · % of queries with a right match up to the rank`,
        id: "card-cmc",
      },
      lines({
        series,
        xLabel: "rank",
        xName: "rank",
        label: "CMC curves",
        xTicks: CMC_TICKS,
        yDomain: [Math.floor(lowest / 10) * 10, 100],
        valueFormat: (value) => fixed(value),
      }),
    );
  }

  function trainingCard() {
    const { training } = REPORT.summary;
    if (!training) return null;
    const series = (key, name, look) => ({
      name,
      ...look,
      points: training.epoch
        .map((epoch, i) => [epoch, (training[key] || [])[i]])
        .filter(([, value]) => isNumber(value)),
    });
    const loss = lines({
      series: [series("loss", "loss", { colour: PATTERNS[2], strong: true })],
      xLabel: "epoch",
      xName: "epoch",
      label: "Training loss",
      valueFormat: (value) => fixed(value, 3),
    });
    const scores = lines({
      series: [
        series("mAP", "mAP", { colour: PATTERNS[2], strong: true, dots: true }),
        series("rank_1", "R-1", { colour: PATTERNS[1], dash: "6 3", dots: true }),
      ],
      xLabel: "epoch",
      xName: "epoch",
      label: "mAP and Rank-1 over the epochs",
      valueFormat: (value) => fixed(value),
    });
    return card(
      "Training",
      {
        note: `mean loss of each epoch; scores on the ${training.split || "test"} split, percent`,
        id: "card-training",
      },
      element("div", { class: "two-charts" }, loss, scores),
    );
  }

  function selectionCard() {
    const { selection, modalities } = REPORT.summary;
    if (!selection) return null;
    const bars = modalities
      .filter((name) => isNumber(selection[name]))
      .map((name) => ({ name, value: selection[name], text: fixed(selection[name]) }));
    const marks = [
      ["chance", selection.chance, "chance"],
      ["best possible", selection.best_possible, "best"],
    ]
      .filter(([, value]) => isNumber(value))
      .map(([name, value, kind]) => ({ name, value, kind, text: fixed(value) }));
    const same = selection.same_patches;
    if (same) {
      const text = bars.map(({ name }) => `${name} ${fixed(same[name])}`).join(", ");
      marks.push({ name: "the same patches in every image", value: same, kind: "same", text });
    }
    return card(
      "Kept patches on the person",
      { note: "% of the kept patches", id: "card-selection" },
      markedBars(bars, marks),
    );
  }

  const openIdentity = (person) => REPORT.rankLists.openIdentity(person);

  function breakdownCards() {
    const { breakdown, patterns } = REPORT.summary;
    if (!breakdown) return [null, null];
    const note = `complete · ${patterns[patterns.length - 1].name} · percent`;
    const pairs = breakdown.camera_pairs || [];
    const identities = breakdown.identities || [];
    return [
      pairs.length
        ? card(
            "Camera pairs",
            { note: `mAP · ${note}`, id: "card-cameras" },
            REPORT.tables.cameraMatrix(pairs),
          )
        : null,
      identities.length
        ? card(
            `Identities (${identities.length})`,
            { note: `${note} · click for the rank lists`, id: "card-identities" },
            REPORT.tables.identityTable(identities, openIdentity),
          )
        : null,
    ];
  }

  function originCard() {
    const { config, software } = REPORT.summary;
    return card(
      "How it was made",
      { id: "card-origin" },
      software ? element("p", {}, software) : null,
      config
        ? element("details", {}, element("summary", {}, "Configuration"), element("pre", {}, config))
        : null,
    );
  }

  /** Cards that follow the switches, by the fields they depend on. */
  const FOLLOWING = [
    ["card-results", resultsCard],
    ["card-missing", missingCard],
    ["card-cmc", cmcCard],
  ];

  function refresh(changed) {
    if (!changed.has("pattern") && !changed.has("setting")) return;
    for (const [id, build] of FOLLOWING) {
      const old = document.getElementById(id);
      if (!old) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement.textContent : null;
      const made = build();
      old.replaceWith(made);
      // The button that was pressed is a new element now: keep the focus on its twin.
      if (focused)
        [...made.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
    }
  }

  /** Two columns of cards; a side without cards leaves its room to the other. */
  function columns(left, right) {
    let sides = [left, right].map((cards) => cards.filter(Boolean));
    if (!sides[0].length && !sides[1].length) return null;
    if (!sides[1].length && sides[0].length > 1) sides = [sides[0].slice(0, 1), sides[0].slice(1)];
    return element(
      "div",
      { class: "columns" },
      sides.filter((cards) => cards.length).map((cards) => element("div", { class: "stack" }, cards)),
    );
  }

  function start(panel) {
    const [cameras, identities] = breakdownCards();
    panel.append(
      element(
        "div",
        { class: "cards" },
        columns([resultsCard(), selectionCard()], [missingCard()]),
        columns([cmcCard()], [trainingCard()]),
        columns([cameras, REPORT.cost.costCard()], [identities]),
        originCard(),
      ),
    );
    REPORT.state.onChange(refresh);
  }

  REPORT.overview = { start };
})();
