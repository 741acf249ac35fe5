"use strict";

/** Keys, and the dialog that lists them. */
(function () {
  const { h, byId, fact, openDialog, closeByClickBeside } = REPORT.dom;

  const SHORTCUTS = [
    ["1 2 3", "Overview, Rank lists, Feature map"],
    ["↓ ↑ or j k", "next, previous query"],
    ["p", "next return pattern"],
    ["m", "next missing-modality condition"],
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

  function stepQuery(step) {
    if (REPORT.state.values.tab === "overview") return false;
    REPORT.rankLists.step(step);
    return true;
  }

  const ids = (choices) => choices.map(({ id }) => id);

  const KEYS = {
    "j": () => stepQuery(1),
    "k": () => stepQuery(-1),
    "p": () => REPORT.state.cycle("pattern", ids(REPORT.summary.patterns)),
    "m": () => REPORT.state.cycle("condition", ids(REPORT.summary.conditions)),
    "/": () => {
      REPORT.state.set({ tab: "ranks" });
      REPORT.rankLists.focusFilter();
    },
    "?": () => openDialog(byId("help")),
  };
  Object.keys(REPORT.state.TABS).forEach((tab, i) => {
    KEYS[i + 1] = () => REPORT.state.set({ tab });
  });

  /** Keys that also work in the enlarged view. */
  const OVERLAY_KEYS = {
    "o": () => {
      const { values, set, cycle } = REPORT.state;
      if (values.tab === "overview") set({ tab: "ranks" });
      cycle("overlay", REPORT.overlay.modeNames());
    },
    "[": () => REPORT.overlay.stepDetail(-1, REPORT.rankLists.tokens()),
    "]": () => REPORT.overlay.stepDetail(1, REPORT.rankLists.tokens()),
  };

  function actionFor({ key, target }) {
    if (OVERLAY_KEYS[key]) return REPORT.summary.grid ? OVERLAY_KEYS[key] : null;
    const arrow = usesArrows(target) ? "" : key;
    if (REPORT.rankLists.isEnlarged()) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[arrow];
      return step && (() => REPORT.rankLists.stepRank(step));
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[arrow];
    return step ? () => stepQuery(step) : KEYS[key];
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target) || byId("help").open) return;
    const action = actionFor(event);
    if (action && action() !== false) event.preventDefault();
  }

  function start() {
    const help = byId("help");
    const shortcuts = SHORTCUTS.map(([keys, what]) => fact(keys, what));
    const close = h("button.plain", { onclick: () => help.close() }, "Close");
    help.append(h("h2#help-title", "Keyboard"), h("dl", shortcuts), close);
    closeByClickBeside(help);
    byId("help-button").addEventListener("click", () => openDialog(help));
    document.addEventListener("keydown", onKey);
  }

  REPORT.keyboard = { start };
})();
