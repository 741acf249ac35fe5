"use strict";

/** What is known about the patch under the pointer, or under the keyboard's cursor. */
(function () {
  const { element, placeBeside } = REPORT.dom;
  const { fixed } = REPORT.words;
  const MOST_TOKENS = 3;
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  let cursors = [];
  let current = null; // {node, row, column}

  const tip = () => document.getElementById("patch-tip");

  function viewOf(node) {
    const { data } = REPORT.data.peek("triple", Number(node.closest(".triple").dataset.row));
    const part = data && data[REPORT.state.values.setting];
    return part ? REPORT.patches.view(part[node.dataset.modality]) : null;
  }

  function scoreLine(name, value, maximum) {
    return element(
      "div",
      { class: "tip-score" },
      element("span", {}, name),
      element(
        "i",
        { class: "tip-track" },
        element("i", { style: { width: `${(100 * value) / (maximum || 1)}%` } }),
      ),
      element("b", {}, fixed(value, 2)),
    );
  }

  function tokenLine(view, patch) {
    if (!view.tokens) return "";
    if (view.place[patch] < 0) return `feeds the extra token: ${fixed(view.extra[patch], 3)}`;
    const feeds = REPORT.patches.feeds(view, patch, MOST_TOKENS);
    return `feeds ${feeds.map(({ token, weight }) => `token ${token + 1}: ${fixed(weight, 3)}`).join(", ")}`;
  }

  function content(modality, view, row, column) {
    const patch = row * REPORT.summary.grid[1] + column;
    const kept = view.place[patch] >= 0;
    const names = REPORT.summary.sources[modality];
    return [
      element(
        "div",
        { class: "tip-head" },
        element("b", {}, modality),
        ` row ${row + 1}, column ${column + 1}`,
        element("span", { class: kept ? "tip-kept" : "tip-discarded" }, kept ? "kept" : "discarded"),
      ),
      scoreLine("total", view.scores[0][patch], view.scoreMax),
      ...names.map((name, i) => scoreLine(name, view.scores[i + 1][patch], 1)),
      element("div", { class: "tip-tokens" }, tokenLine(view, patch)),
    ];
  }

  /** The same patch is marked in all modalities: they show the same place. */
  function markPatch(node, row, column) {
    const [rows, columns] = REPORT.summary.grid;
    cursors.forEach((cursor) => cursor.remove());
    cursors = [...node.closest(".triple").querySelectorAll(".modality")].map((modality) => {
      const cursor = element("i", {
        class: "patch-cursor",
        style: {
          left: `${(100 * column) / columns}%`,
          top: `${(100 * row) / rows}%`,
          width: `${100 / columns}%`,
          height: `${100 / rows}%`,
        },
      });
      modality.append(cursor);
      return cursor;
    });
  }

  function show(node, row, column, x, y) {
    const view =
      REPORT.state.values.overlay === "off" || node.classList.contains("missing") ? null : viewOf(node);
    if (!view) return hide();
    current = { node, row, column };
    markPatch(node, row, column);
    const box = tip();
    // An open modal dialog lies above everything outside it.
    (node.closest("dialog") || document.body).append(box);
    box.replaceChildren(...content(node.dataset.modality, view, row, column));
    box.hidden = false;
    placeBeside(box, x, y);
  }

  function hide() {
    if (!current) return;
    current = null;
    cursors.forEach((cursor) => cursor.remove());
    cursors = [];
    tip().hidden = true;
  }

  function followPointer(event) {
    const node = event.target.closest?.(".with-patches .modality");
    if (!node) return hide();
    const [rows, columns] = REPORT.summary.grid;
    const box = node.getBoundingClientRect();
    const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const column = Math.min(
      columns - 1,
      Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)),
    );
    show(node, row, column, event.clientX, event.clientY);
  }

  function showAt(node, row, column) {
    const [rows, columns] = REPORT.summary.grid;
    const box = node.getBoundingClientRect();
    show(
      node,
      row,
      column,
      box.left + (box.width * (column + 1)) / columns,
      box.top + (box.height * row) / rows,
    );
  }

  /** Arrow keys on a focused image move from patch to patch. */
  function followKeys(event) {
    const step = ARROWS[event.key];
    const node = event.target.closest?.(".modality[tabindex]");
    if (!node || !step || !current || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const [rows, columns] = REPORT.summary.grid;
    showAt(
      node,
      Math.min(rows - 1, Math.max(0, current.row + step[0])),
      Math.min(columns - 1, Math.max(0, current.column + step[1])),
    );
  }

  function start() {
    if (!REPORT.summary.grid) return;
    document.addEventListener("pointermove", followPointer);
    document.addEventListener("pointerdown", followPointer);
    document.addEventListener("scroll", hide, true);
    document.addEventListener("keydown", followKeys, true);
    document.addEventListener("focusin", (event) => {
      const [rows, columns] = REPORT.summary.grid;
      if (event.target.matches(".modality[tabindex]:focus-visible"))
        showAt(event.target, Math.floor(rows / 2), Math.floor(columns / 2));
    });
    document.addEventListener("focusout", hide);
  }

  REPORT.patchTip = { start, hide };
})();
