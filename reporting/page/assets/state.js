"use strict";

/** What the page shows, kept in the address so that a link or a reload comes back to it. */
(function () {
  /** The browser refuses more than about 200 changes of the address in 30 s, and a held key makes more. */
  const WRITE_DELAY_MS = 200;
  const TABS = { overview: "Overview", ranks: "Rank lists", map: "Feature map" };
  const SORTS = ["ap", "person", "name"];
  const COLOURS = ["person", "camera", "ap"];

  const values = {};
  const initial = {};
  const listeners = [];
  let fields = {};
  let timer = 0;

  const oneOf = (choices) => (text) => choices.find((choice) => String(choice) === text);
  const wholeNumber = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined);

  /** Field → [how its text is read (undefined: not valid), value at the start]. */
  function describe(summary) {
    const { patterns, conditions, triples, queries, sources, modalities, any_to_any: matrix } = summary;
    const numSources = sources ? sources[modalities[0]].length : 0;
    const known = (column) => oneOf(["", ...new Set(column)]);
    return {
      tab: [oneOf(Object.keys(TABS)), "overview"],
      query: [oneOf(queries), null],
      pattern: [oneOf(patterns.map(({ id }) => id)), patterns[patterns.length - 1].id],
      condition: [oneOf(conditions.map(({ id }) => id)), conditions[0].id],
      cell: [oneOf(["", ...(matrix ? matrix.cells.map(({ id }) => id) : [])]), ""],
      overlay: [oneOf(REPORT.overlay.modeNames()), "off"],
      source: [oneOf([...Array(1 + numSources).keys()]), 0],
      token: [(text) => (text === "extra" ? text : wholeNumber(text)), 0],
      camera: [known(triples.camera), ""],
      scene: [known(triples.scene || []), ""],
      person: [known(triples.person), ""],
      text: [(text) => text, ""],
      wrong: [oneOf([true, false]), false],
      sort: [oneOf(SORTS), SORTS[0]],
      colour: [oneOf(COLOURS), COLOURS[0]],
    };
  }

  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const read = ([name, [parse, first]]) => [
      name,
      (given.has(name) ? parse(given.get(name)) : null) ?? first,
    ];
    return Object.fromEntries(Object.entries(fields).map(read));
  }

  function toAddress() {
    const isNew = ([name, value]) => name === "tab" || value !== initial[name];
    return `#${new URLSearchParams(Object.entries(values).filter(isNew))}`;
  }

  function write(method) {
    clearTimeout(timer);
    const address = toAddress();
    if (address !== location.hash) history[method](null, "", address);
  }

  function apply(changes) {
    const changed = new Set(Object.keys(changes).filter((name) => values[name] !== changes[name]));
    Object.assign(values, changes);
    if (changed.size) listeners.forEach((listener) => listener(changed));
    return changed;
  }

  /** Changes the state and tells the listeners which fields are new. Only a new view enters the history. */
  function set(wanted) {
    // The switches of feature and modalities leave the any-to-any matrix.
    const leaves = "pattern" in wanted || "condition" in wanted;
    const changed = apply(leaves ? { cell: "", ...wanted } : wanted);
    if (changed.has("tab")) write("pushState");
    else if (changed.size) {
      clearTimeout(timer);
      timer = setTimeout(write, WRITE_DELAY_MS, "replaceState");
    }
  }

  /** The next of the choices of a field, round and round. */
  function cycle(name, choices) {
    set({ [name]: choices[(choices.indexOf(values[name]) + 1) % choices.length] });
  }

  function start(summary) {
    fields = describe(summary);
    for (const [name, [, value]] of Object.entries(fields)) initial[name] = value;
    Object.assign(values, fromAddress());
    window.addEventListener("hashchange", () => {
      const read = fromAddress();
      if (read.query === null) read.query = values.query;
      apply(read);
    });
    window.addEventListener("pagehide", () => write("replaceState"));
  }

  /** @param {function(Set<string>)} listener called with the names of the fields that changed. */
  const onChange = (listener) => listeners.push(listener);

  REPORT.state = { values, start, set, cycle, onChange, TABS };
})();
