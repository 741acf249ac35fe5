"use strict";

/** Keys, and the dialog that lists them. */
(function () {
  const { element, openDialog } = REPORT.dom;

  const SHORTCUTS = [
    ["1 2 3", "Overview, Rank lists, Feature map"],
    ["↓ ↑ or j k", "next, previous query"],
    ["p", "next return pattern"],
    ["m", "next missing-modality setting"],
    ["o", "next overlay: off, kept, scores, tokens"],
    ["[ ]", "previous, next score source or token"],
    ["/", "filter the queries (Enter takes the first)"],
    ["← →", "previous, next rank in the enlarged view"],
    ["arrows", "from patch to patch on a focused image"],
    ["Esc", "close"],
    ["?", "this list"],
  ];

  const isTyping = (target) =>
    target.matches?.("input:not([type=checkbox]):not([type=range]), textarea, select");
  /** Arrow keys belong to these elements. */
  const usesArrows = (target) =>
    target.matches?.("input, select, [role=radio], [role=tab], .modality[tabindex]");

  function openRanks() {
    if (REPORT.state.values.tab === "overview") REPORT.state.set({ tab: "ranks" });
  }

  function stepQuery(step) {
    if (REPORT.state.values.tab === "overview") return false;
    REPORT.rankLists.step(step);
    return true;
  }

  function cycleIds(name, choices) {
    REPORT.state.cycle(
      name,
      choices.map(({ id }) => id),
    );
  }

  const KEYS = {
    "j": () => stepQuery(1),
    "k": () => stepQuery(-1),
    "p": () => cycleIds("pattern", REPORT.summary.patterns),
    "m": () => cycleIds("setting", REPORT.summary.settings),
    "/": () => {
      REPORT.state.set({ tab: "ranks" });
      REPORT.rankLists.focusFilter();
    },
    "?": () => openDialog(document.getElementById("help")),
  };
  REPORT.state.TABS.forEach((tab, i) => {
    KEYS[i + 1] = () => REPORT.state.set({ tab });
  });

  /** Keys that also work in the enlarged view. */
  const OVERLAY_KEYS = {
    "o": () => {
      openRanks();
      REPORT.state.cycle("overlay", REPORT.state.overlaysOf(REPORT.summary));
    },
    "[": () => REPORT.overlay.stepDetail(-1, tokens()),
    "]": () => REPORT.overlay.stepDetail(1, tokens()),
  };
  const tokens = () => (REPORT.compare.isOpen() ? REPORT.compare.tokens() : REPORT.rankLists.tokens());

  function actionFor(event) {
    if (OVERLAY_KEYS[event.key]) return REPORT.summary.grid ? OVERLAY_KEYS[event.key] : null;
    if (REPORT.compare.isOpen()) {
      const step = usesArrows(event.target) ? 0 : { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      return step ? () => REPORT.compare.step(step) : null;
    }
    const step = usesArrows(event.target) ? 0 : { ArrowDown: 1, ArrowUp: -1 }[event.key];
    return step ? () => stepQuery(step) : KEYS[event.key];
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target))
      return;
    if (document.getElementById("help").open) return;
    const action = actionFor(event);
    if (action && action() !== false) event.preventDefault();
  }

  function start() {
    const help = document.getElementById("help");
    help.append(
      element("h2", { id: "help-title" }, "Keyboard"),
      element(
        "dl",
        {},
        SHORTCUTS.map(([keys, what]) => element("div", {}, element("dt", {}, keys), element("dd", {}, what))),
      ),
      element("button", { type: "button", class: "plain", onclick: () => help.close() }, "Close"),
    );
    help.addEventListener("click", (event) => event.target === help && help.close());
    document.getElementById("help-button").addEventListener("click", () => openDialog(help));
    document.addEventListener("keydown", onKey);
  }

  REPORT.keyboard = { start };
})();
