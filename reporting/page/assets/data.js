"use strict";

/**
 * What the report is made of: `summary` at once, rankings and patch data by script tags when they are needed.
 * Scripts, not fetch: a page opened from disk may not fetch.
 */
(function () {
  /** How many files of each kind are kept; the least recently used go first. */
  const CAPACITY = { ranking: 8, triple: 160 };
  const NAMES = { ranking: (key) => `ranking_${key}`, triple: (key) => `triples/${key}` };
  const NEEDED = ["title", "modalities", "image", "patterns", "conditions", "results", "triples", "queries"];

  const BROKEN =
    "data/summary.js is missing or broken. Keep all files of the report in one folder, or write it again.";

  const arrived = new Map(); // name → data, between the run of a data script and its load event
  /** Key → {promise, data, error}, least recently used first. */
  const kept = { ranking: new Map(), triple: new Map() };

  /** Called by the data files. */
  function receive(name, data) {
    if (name === "summary") REPORT.summary = data;
    else arrived.set(name, data);
  }

  /** Why the summary cannot be shown, or null. */
  function summaryProblem() {
    const { summary } = REPORT;
    if (!summary) return BROKEN;
    const absent = NEEDED.filter((key) => summary[key] === undefined || summary[key] === null);
    return absent.length ? `data/summary.js lacks: ${absent.join(", ")}. Write the report again.` : null;
  }

  function runScript(kind, key) {
    const name = NAMES[kind](key);
    const path = `data/${name}.js`;
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.onload = () => {
        script.remove();
        if (!arrived.has(name)) return reject(new Error(`${path} is broken`));
        resolve(arrived.get(name));
        arrived.delete(name);
      };
      script.onerror = () => {
        script.remove();
        reject(new Error(`${path} is missing`));
      };
      script.src = path;
      document.head.append(script);
    });
  }

  function startLoading(kind, key) {
    const entry = { data: null, error: null, promise: runScript(kind, key) };
    entry.promise.then(
      (data) => (entry.data = data),
      (error) => (entry.error = error),
    );
    kept[kind].set(key, entry);
    if (kept[kind].size > CAPACITY[kind]) kept[kind].delete(kept[kind].keys().next().value);
    return entry;
  }

  /** The entry of a file, which becomes the most recently used one. */
  function touch(kind, key) {
    const entry = kept[kind].get(key);
    if (entry) {
      kept[kind].delete(key);
      kept[kind].set(key, entry);
    }
    return entry;
  }

  /** The data of one file, as a promise. A file that failed stays failed until it is forgotten. */
  const load = (kind, key) => (touch(kind, key) || startLoading(kind, key)).promise;

  /** The data of one file if it is here: {data, error}, both null while it is not. */
  const peek = (kind, key) => touch(kind, key) || { data: null, error: null };

  /** Lets a file be asked for again. */
  const forget = (kind, key) => kept[kind].delete(key);

  REPORT.receive = receive;
  REPORT.data = { load, peek, forget, summaryProblem, kept, CAPACITY };
})();
