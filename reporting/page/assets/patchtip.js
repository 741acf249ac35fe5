"use strict";

/** What is known about the patch under the pointer, or under the keyboard's cursor. */
(function () {
  const { h, byId, placeBeside } = REPORT.dom;
  const { fixed } = REPORT.words;
  const MOST_TOKENS = 3;
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  let cursors = [];
  let current = null; // {node, row, column}

  const clamp = (value, length) => Math.min(length - 1, Math.max(0, value));

  function viewOf(node) {
    const { data } = REPORT.data.peek("triple", Number(node.closest(".triple").dataset.row));
    const part = data && data[REPORT.state.values.condition];
    return part ? REPORT.patches.view(part[node.dataset.modality]) : null;
  }

  function scoreLine(name, value, maximum) {
    const bar = h("i", { style: { width: `${(100 * value) / (maximum || 1)}%` } });
    return h("div.tip-score", h("span", name), h("i.tip-track", bar), h("b", fixed(value, 2)));
  }

  function tokenLine(view, patch) {
    if (!view.tokens) return "";
    if (view.keptIndex[patch] < 0) return `feeds the extra token: ${fixed(view.extra[patch], 3)}`;
    const feeds = REPORT.patches.feeds(view, patch, MOST_TOKENS);
    return `feeds ${feeds.map(({ token, weight }) => `token ${token + 1}: ${fixed(weight, 3)}`).join(", ")}`;
  }

  function content(modality, view, row, column) {
    const patch = row * REPORT.summary.grid[1] + column;
    const verdict = view.keptIndex[patch] < 0 ? "discarded" : "kept";
    const position = ` row ${row + 1}, column ${column + 1}`;
    return [
      h("div.tip-head", h("b", modality), position, h("span", { class: `tip-${verdict}` }, verdict)),
      scoreLine("total", view.scores[0][patch], view.scoreMax),
      ...REPORT.summary.sources[modality].map((name, i) => scoreLine(name, view.scores[i + 1][patch], 1)),
      h("div.tip-tokens.muted", tokenLine(view, patch)),
    ];
  }

  /** Marks the same patch in all modalities of the triple. */
  function markPatch(node, row, column) {
    const [rows, columns] = REPORT.summary.grid;
    const style = {
      left: `${(100 * column) / columns}%`,
      top: `${(100 * row) / rows}%`,
      width: `${100 / columns}%`,
      height: `${100 / rows}%`,
    };
    cursors.forEach((cursor) => cursor.remove());
    cursors = [...node.closest(".triple").querySelectorAll(".modality")].map((modality) => {
      const cursor = h("i.patch-cursor", { style });
      modality.append(cursor);
      return cursor;
    });
  }

  function show(node, row, column, x, y) {
    const off = REPORT.state.values.overlay === "off" || node.classList.contains("missing");
    const view = off ? null : viewOf(node);
    if (!view) return hide();
    current = { node, row, column };
    markPatch(node, row, column);
    const tip = byId("patch-tip");
    // An open modal dialog lies above everything outside it.
    (node.closest("dialog") || document.body).append(tip);
    tip.replaceChildren(...content(node.dataset.modality, view, row, column));
    tip.hidden = false;
    placeBeside(tip, x, y);
  }

  function hide() {
    if (!current) return;
    current = null;
    cursors.forEach((cursor) => cursor.remove());
    cursors = [];
    byId("patch-tip").hidden = true;
  }

  function followPointer(event) {
    const node = event.target.closest?.(".with-patches .modality");
    if (!node) return hide();
    const [rows, columns] = REPORT.summary.grid;
    const { left, top, width, height } = node.getBoundingClientRect();
    const row = clamp(Math.floor(((event.clientY - top) / height) * rows), rows);
    const column = clamp(Math.floor(((event.clientX - left) / width) * columns), columns);
    show(node, row, column, event.clientX, event.clientY);
  }

  function showAt(node, row, column) {
    const [rows, columns] = REPORT.summary.grid;
    const { left, top, width, height } = node.getBoundingClientRect();
    show(node, row, column, left + (width * (column + 1)) / columns, top + (height * row) / rows);
  }

  /** Arrow keys on a focused image move from patch to patch. */
  function followKeys(event) {
    const step = ARROWS[event.key];
    const node = event.target.closest?.(".modality[tabindex]");
    if (!node || !step || !current || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const [rows, columns] = REPORT.summary.grid;
    showAt(node, clamp(current.row + step[0], rows), clamp(current.column + step[1], columns));
  }

  function followFocus({ target }) {
    const [rows, columns] = REPORT.summary.grid;
    if (target.matches(".modality[tabindex]:focus-visible"))
      showAt(target, Math.floor(rows / 2), Math.floor(columns / 2));
  }

  function start() {
    if (!REPORT.summary.grid) return;
    document.addEventListener("pointermove", followPointer);
    document.addEventListener("pointerdown", followPointer);
    document.addEventListener("scroll", hide, true);
    document.addEventListener("keydown", followKeys, true);
    document.addEventListener("focusin", followFocus);
    document.addEventListener("focusout", hide);
  }

  REPORT.patchTip = { start, hide };
})();
