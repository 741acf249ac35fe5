"use strict";

/** The enlarged view: the query and one gallery triple side by side. */
(function () {
  const { element, openDialog } = REPORT.dom;
  const { place, person } = REPORT.words;

  let dialog;
  let body;
  let overlay;
  let shown = null; // {result, ranks: [[rank, row, distance]], at}

  /** What can be enlarged: the listed ranks, then the first right match if it lies beyond them. */
  function ranksOf({ rows, distances, match }) {
    const ranks = rows.map((row, i) => [i + 1, row, distances[i]]);
    return match && match[0] > rows.length ? [...ranks, match] : ranks;
  }

  function side(row, heading, className) {
    return element(
      "figure",
      { "class": `compare-side ${className}`, "data-row": row },
      element(
        "figcaption",
        {},
        element("h3", {}, heading),
        element("span", {}, `id ${person(row)} · ${place(row)}`),
      ),
      REPORT.triple.triple(row, { labelled: true, focusable: Boolean(REPORT.summary.grid) }),
      element("p", { class: "name" }, REPORT.summary.triples.names[row]),
    );
  }

  function draw() {
    const { result, ranks, at } = shown;
    const [rank, row, distance] = ranks[at];
    const right = REPORT.queries.isRight(result.row, row);
    const verdict = element(
      "span",
      { class: right ? "verdict right" : "verdict wrong" },
      REPORT.rankLists.sign(right),
      right ? "right" : "wrong",
      ` · distance ${REPORT.rankLists.distanceText(distance)}`,
    );
    body.replaceChildren(
      side(result.row, "Query", ""),
      side(row, [`Rank ${rank} `, verdict], right ? "right" : "wrong"),
    );
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
    dialog = document.getElementById("compare");
    const control = element("div", {});
    control.hidden = !REPORT.summary.grid;
    body = element("div", { class: "compare-body with-patches" });
    const button = (className, text, label, onclick) =>
      element(
        "button",
        { "type": "button", "class": className, "aria-label": label, "title": label, onclick },
        text,
      );
    dialog.append(
      element(
        "div",
        { class: "compare-bar" },
        control,
        element(
          "div",
          { class: "compare-buttons" },
          button("round previous", "←", "Previous rank (←)", () => step(-1)),
          button("round next", "→", "Next rank (→)", () => step(1)),
          button("round close", "×", "Close (Esc)", () => dialog.close()),
        ),
      ),
      body,
    );
    overlay = new REPORT.overlay.Overlay(body, control);
    // The dialog covers its own box only: a click beside it lands on the dialog element itself.
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => {
      REPORT.patchTip.hide();
      body.replaceChildren();
    });
  }

  REPORT.compare = { start, open, step, isOpen: () => dialog.open, tokens: () => overlay.tokens };
})();
