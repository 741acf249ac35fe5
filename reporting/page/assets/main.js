"use strict";

/** Puts the page together. */
(function () {
  const { element, segmented, markChoice, select } = REPORT.dom;
  const { settingName, protocolSentence } = REPORT.words;
  const TAB_NAMES = { overview: "Overview", ranks: "Rank lists", map: "Feature map" };

  const byId = (id) => document.getElementById(id);

  /** The path of the weights in two parts, of which the folders give way where space is short. */
  function weightsParts({ weights, choice }) {
    const cut = Math.max(weights.lastIndexOf("/"), weights.lastIndexOf("\\"), 0);
    return [
      element("span", { class: "path-folders" }, weights.slice(0, cut)),
      element("span", { class: "path-file" }, [weights.slice(cut), choice].filter(Boolean).join(", ")),
    ];
  }

  function buildHeader() {
    const { summary } = REPORT;
    document.title = summary.title;
    byId("title").textContent = summary.title;
    byId("protocol").textContent = protocolSentence(summary);
    const facts = [
      ["data set", summary.dataset],
      ["weights", [summary.weights, summary.choice].filter(Boolean).join(", "), weightsParts(summary)],
      ["commit", summary.commit],
      ["date", summary.created],
    ];
    byId("facts").append(
      ...facts
        .filter(([, value]) => value)
        .map(([name, value, parts = [value]]) =>
          element(
            "div",
            { class: `fact-${name.replace(" ", "-")}` },
            element("dt", {}, name),
            element("dd", { title: value }, ...parts),
          ),
        ),
    );
  }

  function buildTabs() {
    byId("tabs").append(
      ...REPORT.state.TABS.map((tab, i) =>
        element(
          "button",
          {
            "type": "button",
            "role": "tab",
            "id": `tab-${tab}`,
            "aria-controls": `panel-${tab}`,
            "title": `${TAB_NAMES[tab]} (${i + 1})`,
            "onclick": () => REPORT.state.set({ tab }),
          },
          TAB_NAMES[tab],
        ),
      ),
    );
    byId("tabs").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const { TABS, values, set } = REPORT.state;
      const next = TABS[(TABS.indexOf(values.tab) + step + TABS.length) % TABS.length];
      set({ tab: next });
      byId(`tab-${next}`).focus();
    });
  }

  function buildSwitches() {
    const { patterns, settings } = REPORT.summary;
    const { values, set } = REPORT.state;
    const feature =
      patterns.length > 1
        ? segmented({
            label: "Return pattern",
            id: "pattern-switch",
            options: patterns.map(({ id, name }) => [id, name, `Return pattern ${id} (p)`]),
            value: values.pattern,
            onchange: (pattern) => set({ pattern }),
          })
        : element("b", { id: "pattern-switch" }, patterns[0].name);
    byId("switches").append(element("div", { class: "field" }, element("span", {}, "feature"), feature));
    if (settings.length < 2) return;
    byId("switches").append(
      select({
        id: "setting-switch",
        label: "modalities",
        title: "Missing modality (m)",
        options: settings.map((setting) => [setting.id, settingName(setting)]),
        value: values.setting,
        onchange: (setting) => set({ setting }),
      }),
    );
  }

  function showTab() {
    const { tab } = REPORT.state.values;
    for (const name of REPORT.state.TABS) {
      const chosen = name === tab;
      byId(`panel-${name}`).hidden = !chosen;
      byId(`tab-${name}`).setAttribute("aria-selected", String(chosen));
      byId(`tab-${name}`).tabIndex = chosen ? 0 : -1;
    }
    document.body.dataset.tab = tab;
  }

  function showSwitches() {
    const { patterns, settings } = REPORT.summary;
    const { pattern, setting } = REPORT.state.values;
    if (patterns.length > 1) markChoice(byId("pattern-switch"), pattern);
    if (settings.length > 1) byId("setting-switch").value = setting;
    const whole = setting === settings[0].id;
    document.body.classList.toggle("some-missing", !whole);
  }

  function fail(text) {
    byId("fatal").textContent = text;
    byId("fatal").hidden = false;
    document.body.classList.add("failed");
  }

  async function start() {
    const problem = REPORT.data.summaryProblem();
    if (problem) return fail(problem);
    REPORT.state.start(REPORT.summary);
    REPORT.triple.setShape();
    buildHeader();
    buildTabs();
    buildSwitches();
    // First of all listeners: the others measure panels, which must be shown by then.
    REPORT.state.onChange((changed) => {
      if (changed.has("tab")) showTab();
      if (changed.has("pattern") || changed.has("setting")) showSwitches();
    });
    showTab();
    showSwitches();
    REPORT.overview.start(byId("panel-overview"));
    REPORT.compare.start();
    REPORT.patchTip.start();
    REPORT.keyboard.start();
    await REPORT.rankLists.start(byId("panel-ranks"));
    REPORT.featureMap.start(byId("panel-map"));
    document.body.dataset.ready = "true";
  }

  start().catch((error) => {
    fail(`The report cannot be shown: ${error.message}. Write the report again.`);
    throw error;
  });
})();
