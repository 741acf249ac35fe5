"use strict";

/** The list of queries with its filters. Only the rows in view are in the document. */
(function () {
  const { element, select } = REPORT.dom;
  const { fixed, shortPlace, person, count } = REPORT.words;
  const ROW_HEIGHT = 58; // as in the style sheet
  const OVERSCAN = 6; // rows kept ready above and below the view
  const STRIP_LENGTH = 10;
  const PAGE = 8; // queries that Page Up and Page Down move

  const sorted = (column) =>
    [...new Set(REPORT.summary.queries.map((row) => column[row]))].sort(REPORT.words.compareValues);

  /** Right and wrong among the first ranks, as small marks: filled is right. */
  function hitStrip(result, length) {
    const rows = result.rows.slice(0, length);
    const right = rows.map((row) => REPORT.queries.isRight(result.row, row));
    return element(
      "span",
      {
        "class": "strip",
        "role": "img",
        "aria-label": `right among the first ${rows.length}: ${right.filter(Boolean).length}`,
      },
      right.map((hit) => element("i", { class: hit ? "right" : "wrong" })),
    );
  }

  function numberOrEmpty(column) {
    return (text) => (text === "" ? "" : column.find((value) => String(value) === text));
  }

  class QueryList {
    constructor(holder) {
      this.items = [];
      this.ranking = null;
      this.form = this.buildFilters();
      this.count = element("p", { class: "count", role: "status", id: "query-count" });
      this.spacer = element("div", { class: "spacer" });
      this.scroller = element(
        "div",
        {
          "class": "query-list",
          "id": "query-list",
          "role": "listbox",
          "tabindex": 0,
          "aria-label": "Queries",
        },
        this.spacer,
      );
      this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
      this.scroller.addEventListener("keydown", (event) => this.onKey(event));
      new ResizeObserver(() => this.draw()).observe(this.scroller);
      holder.append(
        this.form,
        element("div", { class: "list-head" }, this.count, this.buildSort()),
        this.scroller,
      );
    }

    buildFilters() {
      const { triples, protocol } = REPORT.summary;
      const { values, set } = REPORT.state;
      const all = (column, text) => [["", text], ...sorted(column).map((value) => [value, String(value)])];
      const filter = (name, label, column, text) =>
        select({
          id: `filter-${name}`,
          label,
          options: all(column, text),
          value: values[name],
          onchange: (chosen) => set({ [name]: numberOrEmpty(column)(chosen) }),
        });
      this.search = element("input", {
        "type": "search",
        "id": "filter-text",
        "placeholder": "Name, identity or #row",
        "aria-label": "Name, identity or row",
        "autocomplete": "off",
        "spellcheck": "false",
        "oninput": (event) => set({ text: event.target.value }),
        "onkeydown": (event) => this.onSearchKey(event),
      });
      this.wrong = element("input", {
        type: "checkbox",
        id: "filter-wrong",
        onchange: (event) => set({ wrong: event.target.checked }),
      });
      return element(
        "form",
        { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        this.search,
        element(
          "div",
          { class: "filter-row" },
          sorted(triples.camera).length > 1 ? filter("camera", "camera", triples.camera, "all") : null,
          protocol === "scene" ? filter("scene", "scene", triples.scene, "all") : null,
          filter("person", "identity", triples.person, "all"),
        ),
        element(
          "div",
          { class: "filter-row" },
          element("label", { class: "check" }, this.wrong, "only wrong at rank 1"),
          element(
            "button",
            {
              type: "button",
              class: "link",
              id: "filter-reset",
              onclick: () => REPORT.rankLists.resetFilters(),
            },
            "show all",
          ),
        ),
      );
    }

    buildSort() {
      this.sort = select({
        id: "sort",
        label: "order",
        value: REPORT.state.values.sort,
        onchange: (sort) => REPORT.state.set({ sort }),
        options: [
          ["ap", "hardest first"],
          ["person", "identity"],
          ["name", "name"],
        ],
      });
      return this.sort;
    }

    /** Brings the inputs in line with the state, for example after a link was opened. */
    showFilters() {
      const { values } = REPORT.state;
      if (document.activeElement !== this.search) this.search.value = values.text;
      this.wrong.checked = values.wrong;
      for (const name of ["camera", "scene", "person"]) {
        const input = this.form.querySelector(`#filter-${name}`);
        if (input) input.value = String(values[name]);
      }
      this.sort.querySelector("select").value = values.sort;
      const filtered =
        values.wrong || ["camera", "scene", "person", "text"].some((name) => values[name] !== "");
      this.form.querySelector("#filter-reset").hidden = !filtered;
    }

    onSearchKey(event) {
      if (event.key === "Escape") this.search.blur();
      if (event.key !== "Enter" || !this.items.length) return;
      REPORT.state.set({ query: REPORT.summary.queries[this.items[0]] });
      this.scroller.focus();
    }

    onKey(event) {
      const step = { PageDown: PAGE, PageUp: -PAGE, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.step(step);
    }

    /** @param {Array<number>} items positions in `summary.queries`. */
    show(items, ranking) {
      this.items = items;
      this.ranking = ranking;
      const total = REPORT.summary.queries.length;
      this.count.textContent =
        items.length === total
          ? count(total, "query", "queries")
          : `${items.length.toLocaleString("en")} of ${count(total, "query", "queries")}`;
      this.spacer.style.height = `${items.length * ROW_HEIGHT}px`;
      this.spacer.replaceChildren();
      this.scroller.classList.toggle("no-items", !items.length);
      this.showFilters();
      if (this.currentIndex() < 0) this.scroller.scrollTop = 0;
      this.revealCurrent();
    }

    /** Puts the rows of the view into the document and takes the others out. */
    draw() {
      if (!this.ranking) return;
      const from = Math.max(0, Math.floor(this.scroller.scrollTop / ROW_HEIGHT) - OVERSCAN);
      const to = Math.min(
        this.items.length,
        Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW_HEIGHT) + OVERSCAN,
      );
      const present = new Map([...this.spacer.children].map((node) => [Number(node.dataset.index), node]));
      for (const [index, node] of present) if (index < from || index >= to) node.remove();
      for (let index = from; index < to; index += 1)
        if (!present.has(index)) this.spacer.append(this.row(index));
      this.markCurrent();
    }

    row(index) {
      const result = REPORT.queries.resultOf(this.ranking, this.items[index]);
      const { row, ap, first, skipped } = result;
      return element(
        "div",
        {
          "class": "query-row",
          "role": "option",
          "id": `query-${row}`,
          "data-index": index,
          "data-row": row,
          "style": { top: `${index * ROW_HEIGHT}px` },
          "aria-posinset": index + 1,
          "aria-setsize": this.items.length,
          "title": REPORT.summary.triples.names[row],
          "onclick": () => REPORT.state.set({ query: row }),
        },
        REPORT.triple.triple(row),
        element(
          "span",
          { class: "who" },
          element("b", {}, `id ${person(row)}`),
          element("span", {}, shortPlace(row)),
        ),
        element("span", { class: "ap" }, skipped ? "skipped" : fixed(ap)),
        hitStrip(result, STRIP_LENGTH),
        element(
          "span",
          { class: "first", title: "rank of the first right match" },
          skipped ? "" : `first ${first}`,
        ),
      );
    }

    markCurrent() {
      const { query } = REPORT.state.values;
      for (const node of this.spacer.children)
        node.setAttribute("aria-selected", String(Number(node.dataset.row) === query));
      const shown = document.getElementById(`query-${query}`);
      if (shown) this.scroller.setAttribute("aria-activedescendant", shown.id);
      else this.scroller.removeAttribute("aria-activedescendant");
    }

    currentIndex() {
      return this.items.indexOf(REPORT.queries.placeOf(REPORT.state.values.query));
    }

    /** Brings the current query into view: a near one by as little as needed, a far one to the middle. */
    revealCurrent() {
      const index = this.currentIndex();
      const { clientHeight, scrollTop } = this.scroller;
      if (index >= 0 && clientHeight) {
        const top = index * ROW_HEIGHT;
        const over = Math.max(scrollTop - top, top + ROW_HEIGHT - scrollTop - clientHeight);
        if (over > ROW_HEIGHT) this.scroller.scrollTop = top - (clientHeight - ROW_HEIGHT) / 2;
        else if (over > 0) this.scroller.scrollTop += top < scrollTop ? -over : over;
      }
      this.draw();
    }

    /** Chooses the query `step` places further; from outside the list, its first. */
    step(step) {
      if (!this.items.length) return;
      const index = this.currentIndex();
      const next = index < 0 ? 0 : Math.min(this.items.length - 1, Math.max(0, index + step));
      REPORT.state.set({ query: REPORT.summary.queries[this.items[next]] });
    }
  }

  REPORT.queryList = { QueryList, hitStrip };
})();
