"use strict";

/** What the model did with the patches of a triple: numbers only, no drawing. */
(function () {
  const views = new WeakMap(); // the data of one modality → its decoded form

  /** Softmax of `values`, in order. */
  function softmax(values) {
    const highest = Math.max(...values);
    const raised = values.map((value) => Math.exp(value - highest));
    const sum = raised.reduce((before, value) => before + value, 0);
    return raised.map((value) => value / sum);
  }

  function decode(data, patches) {
    const { bytes } = REPORT.data;
    const scoreBytes = bytes(data.scores);
    const weightBytes = bytes(data.weights);
    const sources = scoreBytes.length / patches;
    const scores = Array.from({ length: sources }, (_, source) =>
      Array.from(
        scoreBytes.subarray(source * patches, (source + 1) * patches),
        (byte) => (byte / 255) * (source ? 1 : data.score_max),
      ),
    );
    const place = new Int32Array(patches).fill(-1); // patch → its place among the kept, −1 if discarded
    data.kept.forEach((patch, k) => {
      place[patch] = k;
    });
    const discarded = Array.from(place.keys()).filter((patch) => place[patch] < 0);
    const shares = softmax(discarded.map((patch) => scores[0][patch]));
    const extra = new Float64Array(patches);
    discarded.forEach((patch, i) => {
      extra[patch] = shares[i];
    });
    const weight = (token, patch) =>
      place[patch] < 0 ? 0 : (weightBytes[token * data.kept.length + place[patch]] / 255) * data.weight_max;
    return { scores, place, extra, weight, tokens: data.tokens, scoreMax: data.score_max };
  }

  /**
   * The decoded data of one modality.
   * @returns {Object} scores: [source][patch], the total first; place: [patch], among the kept, or −1;
   *     weight(token, patch): its share in an aggregated token, from 0; extra: [patch], its share in the
   *     extra token; tokens: how many aggregated tokens; scoreMax: the highest total that can be written.
   */
  function view(data) {
    if (!views.has(data)) {
      const [rows, columns] = REPORT.summary.grid;
      views.set(data, decode(data, rows * columns));
    }
    return views.get(data);
  }

  /** Per patch the aggregated token that it feeds most, −1 for discarded patches. */
  function strongestTokens(modality) {
    if (!modality.strongest) {
      modality.strongest = Array.from(modality.place, (k, patch) =>
        k < 0 ? -1 : feeds(modality, patch, 1)[0].token,
      );
    }
    return modality.strongest;
  }

  /** The tokens that a kept patch feeds most: [{token, weight}], largest first. */
  function feeds(modality, patch, most) {
    return Array.from({ length: modality.tokens }, (_, token) => ({
      token,
      weight: modality.weight(token, patch),
    }))
      .sort((a, b) => b.weight - a.weight || a.token - b.token)
      .slice(0, most);
  }

  /** Per patch its share in a token: from 1, or "extra". Beyond the last token: the last. */
  function tokenWeights(modality, token) {
    if (token === "extra") return Array.from(modality.extra);
    const index = Math.min(token, modality.tokens) - 1;
    return Array.from(modality.place, (_, patch) => modality.weight(index, patch));
  }

  REPORT.patches = { view, strongestTokens, feeds, tokenWeights };
})();
