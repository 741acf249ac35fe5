"use strict";

/** The enlarged view: the query and one gallery triple side by side. */
(function () {
  const { h, byId, openDialog, closeByClickBeside, roundButton } = REPORT.dom;
  const { cameraOf, fixed, person } = REPORT.words;
  const { sign, signName, ranksOf } = REPORT.rankLists;

  let dialog;
  let body;
  let overlay;
  let shown = null; // {result, ranks: [[rank, row, distance]], at}

  function side(row, ...heading) {
    return h(
      "figure.compare-side",
      { "data-row": row },
      h("figcaption", h("h3", heading), h("span.muted", `id ${person(row)} · ${cameraOf(row)}`)),
      REPORT.triple.triple(row, { labelled: true, focusable: Boolean(REPORT.summary.grid) }),
      h("p.name", REPORT.summary.triples.names[row]),
    );
  }

  function draw() {
    const { result, ranks, at } = shown;
    const [rank, row, distance] = ranks[at];
    const positive = REPORT.queryList.isPositive(result.row, row);
    const name = signName(positive);
    const verdict = h(
      "span.verdict",
      { class: name },
      sign(positive),
      `${name} · distance ${fixed(distance, 3)}`,
    );
    body.replaceChildren(side(result.row, "Query"), side(row, `Rank ${rank} `, verdict));
    dialog.dataset.rank = rank;
    dialog.querySelector(".previous").disabled = at === 0;
    dialog.querySelector(".next").disabled = at === ranks.length - 1;
    overlay.refresh();
  }

  function open(result, rank) {
    const ranks = ranksOf(result);
    shown = { result, ranks, at: ranks.findIndex(([one]) => one === rank) };
    draw();
    openDialog(dialog);
  }

  /** Shows the neighbour in rank. */
  function step(ranks) {
    const at = Math.min(shown.ranks.length - 1, Math.max(0, shown.at + ranks));
    if (at === shown.at) return;
    shown.at = at;
    draw();
  }

  function start() {
    dialog = byId("compare");
    const control = h("div");
    body = h("div.compare-body.with-patches");
    const buttons = h(
      "div.compare-buttons",
      roundButton("previous", "←", "Previous rank (←)", () => step(-1)),
      roundButton("next", "→", "Next rank (→)", () => step(1)),
      roundButton("close", "×", "Close (Esc)", () => dialog.close()),
    );
    dialog.append(h("div.compare-bar", control, buttons), body);
    overlay = new REPORT.overlay.Overlay(body, control);
    closeByClickBeside(dialog);
    dialog.addEventListener("close", () => {
      REPORT.patchTip.hide();
      body.replaceChildren();
    });
  }

  REPORT.compare = { start, open, step, isOpen: () => dialog.open, tokens: () => overlay.tokens };
})();
