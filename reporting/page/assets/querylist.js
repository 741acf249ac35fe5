"use strict";

/** The list of queries with its filters. Only the rows in view are in the document. */
(function () {
  const { h, byId, select } = REPORT.dom;
  const { fixed, cameraOf, person, count, compareValues } = REPORT.words;
  const NO_FILTERS = { camera: "", scene: "", person: "", text: "", wrong: false };
  const SORTS = { ap: "hardest first", person: "identity", name: "name" };
  const ROW_HEIGHT = 58; // as in the style sheet
  const OVERSCAN = 6; // rows kept ready above and below the view
  const STRIP_LENGTH = 10;
  const PAGE = 8; // queries that Page Up and Page Down move

  /** The index of a triple in `summary.queries`, or −1 if it is only in the gallery. */
  function indexOf(row) {
    indexOf.known ??= new Map(REPORT.summary.queries.map((query, index) => [query, index]));
    return indexOf.known.get(row) ?? -1;
  }

  /** The result of one query: its entries in the columns of a ranking. */
  function resultOf(ranking, index) {
    const entries = Object.entries(ranking).map(([name, column]) => [name, column[index]]);
    const skipped = (ranking.ap[index] ?? null) === null;
    return { ...Object.fromEntries(entries), row: REPORT.summary.queries[index], skipped };
  }

  /** A positive is of the same person and not left out by the protocol. */
  function isPositive(query, row) {
    const column = REPORT.summary.triples[REPORT.summary.protocol];
    return person(row) === person(query) && (!column || column[row] !== column[query]);
  }

  /** Whether the typed text means this triple: part of its name, its identity, or its row as #12. */
  function matchesText(row, text) {
    const wanted = text.trim().toLowerCase();
    const name = REPORT.summary.triples.names[row].toLowerCase();
    return name.includes(wanted) || [String(person(row)), `#${row}`, `row ${row}`].includes(wanted);
  }

  function passes(row, first, { text, wrong, ...columns }) {
    const wanted = (name) => columns[name] === "" || REPORT.summary.triples[name][row] === columns[name];
    return ["camera", "scene", "person"].every(wanted) && (!wrong || first > 1) && matchesText(row, text);
  }

  function comparison(ranking, sort) {
    const { queries, triples } = REPORT.summary;
    const by = (column) => (a, b) => compareValues(column[queries[a]], column[queries[b]]);
    const hardness = (index) => ranking.ap[index] ?? Infinity; // skipped queries have no AP and come last
    const byAp = (a, b) => (hardness(a) === hardness(b) ? 0 : hardness(a) - hardness(b));
    const chain = { ap: [byAp], person: [by(triples.person), byAp], name: [by(triples.names)] }[sort];
    return (a, b) => chain.reduce((order, next) => order || next(a, b), 0) || a - b;
  }

  /** Indices in `summary.queries` that pass the filters, in the order of the list. */
  function listed(ranking, state) {
    const { queries } = REPORT.summary;
    const indices = [...queries.keys()].filter((i) => passes(queries[i], ranking.first[i], state));
    return indices.sort(comparison(ranking, state.sort));
  }

  /** Positives and negatives among the first ranks, as small marks. */
  function hitStrip({ row: query, rows }, length) {
    const hits = rows.slice(0, length).map((row) => isPositive(query, row));
    return h(
      "span.strip",
      {
        "role": "img",
        "aria-label": `positives in the first ${hits.length}: ${hits.filter(Boolean).length}`,
      },
      hits.map((hit) => h("i", { class: hit ? "positive" : "negative" })),
    );
  }

  class QueryList {
    constructor(holder) {
      this.items = [];
      this.ranking = null;
      this.form = this.buildFilters();
      this.sort = select({
        id: "sort",
        label: "order",
        options: Object.entries(SORTS),
        value: REPORT.state.values.sort,
        onchange: (sort) => REPORT.state.set({ sort }),
      });
      this.count = h("p#query-count.muted", { role: "status" });
      this.spacer = h("div.spacer");
      this.scroller = h(
        "div#query-list.query-list",
        {
          "role": "listbox",
          "tabindex": 0,
          "aria-label": "Queries",
          "onscroll": () => this.draw(),
          "onkeydown": (event) => this.onKey(event),
        },
        this.spacer,
      );
      new ResizeObserver(() => this.draw()).observe(this.scroller);
      holder.append(this.form, h("div.list-head", this.count, this.sort), this.scroller);
    }

    buildFilters() {
      const { queries, triples, protocol } = REPORT.summary;
      const { values, set } = REPORT.state;
      const sorted = (name) => [...new Set(queries.map((row) => triples[name][row]))].sort(compareValues);
      const filter = (name, label) =>
        select({
          id: `filter-${name}`,
          label,
          options: [["", "all"], ...sorted(name).map((value) => [value, String(value)])],
          value: values[name],
          onchange: (text) => set({ [name]: sorted(name).find((value) => String(value) === text) ?? "" }),
        });
      this.search = h("input#filter-text", {
        "type": "search",
        "placeholder": "Name, identity or #row",
        "aria-label": "Name, identity or row",
        "autocomplete": "off",
        "spellcheck": "false",
        "oninput": (event) => set({ text: event.target.value }),
        "onkeydown": (event) => this.onSearchKey(event),
      });
      this.wrong = h("input#filter-wrong", {
        type: "checkbox",
        onchange: (event) => set({ wrong: event.target.checked }),
      });
      this.reset = h("button#filter-reset.link", { onclick: () => set(NO_FILTERS) }, "show all");
      return h(
        "form.filters",
        { role: "search", onsubmit: (event) => event.preventDefault() },
        this.search,
        h(
          "div.filter-row",
          sorted("camera").length > 1 && filter("camera", "camera"),
          protocol === "scene" && filter("scene", "scene"),
          filter("person", "identity"),
        ),
        h("div.filter-row", h("label.check", this.wrong, "only errors at rank 1"), this.reset),
      );
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
      this.reset.hidden = Object.entries(NO_FILTERS).every(([name, value]) => values[name] === value);
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

    /** @param {Array<number>} items indices in `summary.queries`. */
    show(items, ranking) {
      this.items = items;
      this.ranking = ranking;
      const all = count(REPORT.summary.queries.length, "query", "queries");
      const isFiltered = items.length < REPORT.summary.queries.length;
      this.count.textContent = isFiltered ? `${items.length.toLocaleString("en")} of ${all}` : all;
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
      const { scrollTop, clientHeight } = this.scroller;
      const from = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - OVERSCAN);
      const to = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT) + OVERSCAN);
      const present = new Map([...this.spacer.children].map((node) => [Number(node.dataset.index), node]));
      for (const [index, node] of present) if (index < from || index >= to) node.remove();
      for (let index = from; index < to; index += 1)
        if (!present.has(index)) this.spacer.append(this.row(index));
      this.markCurrent();
    }

    row(index) {
      const result = resultOf(this.ranking, this.items[index]);
      const { row, ap, first, skipped } = result;
      return h(
        "div.query-row",
        {
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
        h("span.who", h("b", `id ${person(row)}`), h("span.muted", cameraOf(row, { short: true }))),
        h("span.ap", skipped ? "skipped" : fixed(ap)),
        hitStrip(result, STRIP_LENGTH),
        h("span.first.muted", { title: "rank of the first positive" }, skipped ? "" : `first ${first}`),
      );
    }

    markCurrent() {
      const { query } = REPORT.state.values;
      for (const node of this.spacer.children)
        node.setAttribute("aria-selected", String(Number(node.dataset.row) === query));
      const shown = byId(`query-${query}`);
      if (shown) this.scroller.setAttribute("aria-activedescendant", shown.id);
      else this.scroller.removeAttribute("aria-activedescendant");
    }

    currentIndex() {
      return this.items.indexOf(indexOf(REPORT.state.values.query));
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

    /** Chooses the query `step` further down; from outside the list, its first. */
    step(step) {
      if (!this.items.length) return;
      const index = this.currentIndex();
      const next = index < 0 ? 0 : Math.min(this.items.length - 1, Math.max(0, index + step));
      REPORT.state.set({ query: REPORT.summary.queries[this.items[next]] });
    }
  }

  REPORT.queryList = { QueryList, hitStrip, indexOf, resultOf, listed, isPositive, NO_FILTERS };
})();
