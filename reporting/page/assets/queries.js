"use strict";

/** Which queries are listed, and in which order: no drawing. */
(function () {
  const { compareValues } = REPORT.words;

  /** Whether the typed text means this triple: part of its name, its identity, or its row as #12. */
  function matchesText(row, text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return true;
    const { names, person } = REPORT.summary.triples;
    return (
      names[row].toLowerCase().includes(wanted) ||
      String(person[row]) === wanted ||
      `#${row}` === wanted ||
      `row ${row}` === wanted
    );
  }

  function passes(row, first, { camera, scene, person, text, wrong }) {
    const { triples } = REPORT.summary;
    return (
      (camera === "" || triples.camera[row] === camera) &&
      (scene === "" || triples.scene[row] === scene) &&
      (person === "" || triples.person[row] === person) &&
      (!wrong || first > 1) &&
      matchesText(row, text)
    );
  }

  /** Skipped queries have no AP and come last. */
  const hardness = (ap) => (ap === null || ap === undefined ? Infinity : ap);

  function comparison(ranking, sort) {
    const { queries, triples } = REPORT.summary;
    const byPlace = (a, b) => a - b;
    const byAp = (a, b) =>
      hardness(ranking.ap[a]) === hardness(ranking.ap[b])
        ? 0
        : hardness(ranking.ap[a]) - hardness(ranking.ap[b]);
    const byName = (a, b) => compareValues(triples.names[queries[a]], triples.names[queries[b]]);
    const byPerson = (a, b) => compareValues(triples.person[queries[a]], triples.person[queries[b]]);
    const chain = { ap: [byAp], person: [byPerson, byAp], name: [byName] }[sort];
    return (a, b) => chain.reduce((order, next) => order || next(a, b), 0) || byPlace(a, b);
  }

  /** Positions in `summary.queries` that pass the filters, in the order of the list. */
  function listed(ranking, state) {
    const { queries } = REPORT.summary;
    const places = queries
      .map((_, place) => place)
      .filter((place) => passes(queries[place], ranking.first[place], state));
    return places.sort(comparison(ranking, state.sort));
  }

  /** The position of a triple in `summary.queries`, or −1 if it is only in the gallery. */
  function placeOf(row) {
    if (!placeOf.places)
      placeOf.places = new Map(REPORT.summary.queries.map((query, place) => [query, place]));
    return placeOf.places.has(row) ? placeOf.places.get(row) : -1;
  }

  /** The result of one query. */
  function resultOf(ranking, place) {
    return {
      row: REPORT.summary.queries[place],
      ap: ranking.ap[place],
      inp: ranking.inp[place],
      first: ranking.first[place],
      rows: ranking.rows[place] || [],
      distances: ranking.distances[place] || [],
      match: ranking.match[place],
      skipped: ranking.ap[place] === null || ranking.ap[place] === undefined,
    };
  }

  const isRight = (query, row) => REPORT.words.person(query) === REPORT.words.person(row);

  REPORT.queries = { listed, placeOf, resultOf, isRight };
})();
