"use strict";

/** Puts the page together. */
(function () {
  const { h, byId, fact, segmented, moveByArrows, markChoice, select } = REPORT.dom;
  const { conditionName, protocolSentence } = REPORT.words;
  const { TABS } = REPORT.state;

  /** The path of the weights in two parts, of which the folders give way where space is short. */
  function weightsParts({ weights, choice }) {
    const cut = Math.max(weights.lastIndexOf("/"), weights.lastIndexOf("\\"), 0);
    const file = [weights.slice(cut), choice].filter(Boolean).join(", ");
    return [h("span.path-folders", weights.slice(0, cut)), h("span.path-file", file)];
  }

  function buildHeader() {
    const { summary } = REPORT;
    document.title = summary.title;
    byId("title").textContent = summary.title;
    byId("protocol").textContent = protocolSentence(summary);
    const facts = [
      fact("data set", summary.dataset),
      fact("weights", summary.weights && weightsParts(summary), "fact-weights"),
      fact("commit", summary.commit, "fact-commit"),
      fact("date", summary.created),
    ].filter((node) => node.lastChild.textContent);
    for (const { lastChild } of facts) lastChild.title = lastChild.textContent;
    byId("facts").append(...facts);
  }

  /** A tab for each view. */
  function buildTabs() {
    Object.entries(TABS).forEach(([tab, name], i) => {
      const link = { "id": `tab-${tab}`, "data-value": tab, "aria-controls": `panel-${tab}` };
      const onclick = () => REPORT.state.set({ tab });
      byId("tabs").append(h("button", { ...link, role: "tab", title: `${name} (${i + 1})`, onclick }, name));
    });
    moveByArrows(byId("tabs"));
  }

  function buildSwitches() {
    const { patterns, conditions } = REPORT.summary;
    const { values, set } = REPORT.state;
    const feature = segmented({
      label: "Return pattern",
      id: "pattern-switch",
      options: patterns.map(({ id, name }) => [id, name, `Return pattern ${id} (p)`]),
      value: values.pattern,
      onchange: (pattern) => set({ pattern }),
    });
    const only = h("b#pattern-switch", patterns[0].name);
    const condition = select({
      id: "condition-switch",
      label: "modalities",
      title: "Missing modality (m)",
      options: conditions.map((one) => [one.id, conditionName(one)]),
      value: values.condition,
      onchange: (chosen) => set({ condition: chosen }),
    });
    const switches = byId("switches");
    switches.append(h("div.field", h("span.muted", "feature"), patterns.length > 1 ? feature : only));
    if (conditions.length > 1) switches.append(condition);
  }

  function showTab() {
    const { tab } = REPORT.state.values;
    for (const name of Object.keys(TABS)) byId(`panel-${name}`).hidden = name !== tab;
    markChoice(byId("tabs"), tab, "aria-selected");
  }

  function showSwitches() {
    const { patterns, conditions } = REPORT.summary;
    const { pattern, condition } = REPORT.state.values;
    if (patterns.length > 1) markChoice(byId("pattern-switch"), pattern);
    if (conditions.length > 1) byId("condition-switch").value = condition;
    document.body.classList.toggle("some-missing", condition !== conditions[0].id);
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
      if (changed.has("pattern") || changed.has("condition")) showSwitches();
    });
    showTab();
    showSwitches();
    REPORT.overview.start(byId("panel-overview"));
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
