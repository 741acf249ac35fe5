"use strict";

/** What the model did with the patches of a triple: the numbers, and their drawing over one image. */
(function () {
  const { viridis, many } = REPORT.colours;
  /** Canvas pixels along one side of a patch; the style sheet scales the canvas to the image. */
  const PATCH = 16;
  const HEAT_ALPHA = 0.68;
  const TOKEN_ALPHA = 0.62;
  const VEIL = "rgba(223, 228, 237, 0.87)";
  const OUTLINES = { "rgba(16, 32, 64, 0.75)": 3, "rgba(255, 255, 255, 0.95)": 1.4 }; // widths

  const views = new WeakMap(); // the data of one modality → its decoded form

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  function softmax(values) {
    const highest = Math.max(...values);
    const raised = values.map((value) => Math.exp(value - highest));
    const sum = raised.reduce((before, value) => before + value, 0);
    return raised.map((value) => value / sum);
  }

  function decode(data, patches) {
    const scoreBytes = bytes(data.scores);
    const weightBytes = bytes(data.weights);
    const scores = Array.from({ length: scoreBytes.length / patches }, (_, source) =>
      Array.from(
        scoreBytes.subarray(source * patches, (source + 1) * patches),
        (byte) => (byte / 255) * (source ? 1 : data.score_max),
      ),
    );
    const keptIndex = new Array(patches).fill(-1);
    data.kept.forEach((patch, k) => (keptIndex[patch] = k));
    const discarded = [...keptIndex.keys()].filter((patch) => keptIndex[patch] < 0);
    const shares = softmax(discarded.map((patch) => scores[0][patch]));
    const extra = new Array(patches).fill(0);
    discarded.forEach((patch, i) => (extra[patch] = shares[i]));
    const weight = (token, patch) =>
      keptIndex[patch] < 0
        ? 0
        : (weightBytes[token * data.kept.length + keptIndex[patch]] / 255) * data.weight_max;
    return { scores, keptIndex, extra, weight, tokens: data.tokens, scoreMax: data.score_max };
  }

  /**
   * The decoded data of one modality.
   * @returns {Object} scores: [source][patch], the total first; keptIndex: [patch], its index among the kept,
   *     or −1; weight(token, patch): its share in an aggregated token, from 0; extra: [patch], its share in
   *     the extra token; tokens: how many aggregated tokens; scoreMax: the highest total that can be written.
   */
  function view(data) {
    const [rows, columns] = REPORT.summary.grid;
    if (!views.has(data)) views.set(data, decode(data, rows * columns));
    return views.get(data);
  }

  /** Per patch the aggregated token that it feeds most, −1 for discarded patches. */
  function strongestTokens(modality) {
    modality.strongest ??= modality.keptIndex.map((k, patch) =>
      k < 0 ? -1 : feeds(modality, patch, 1)[0].token,
    );
    return modality.strongest;
  }

  /** The tokens that a kept patch feeds most: [{token, weight}], largest first. */
  function feeds(modality, patch, most) {
    const weightOf = (_, token) => ({ token, weight: modality.weight(token, patch) });
    return Array.from({ length: modality.tokens }, weightOf)
      .sort((a, b) => b.weight - a.weight || a.token - b.token)
      .slice(0, most);
  }

  /** Per patch its share in a token: from 1, or "extra". Beyond the last token: the last. */
  function tokenWeights(modality, token) {
    if (token === "extra") return modality.extra;
    const index = Math.min(token, modality.tokens) - 1;
    return modality.keptIndex.map((_, patch) => modality.weight(index, patch));
  }

  /**
   * The number that the heat shows for each patch, or null where the overlay is not a heat map. A patch that
   * cannot have a share in the token is null too: that is not a low value.
   */
  function heatValues(modality, { overlay, source, token }) {
    if (overlay === "scores") return modality.scores[source];
    if (overlay !== "tokens" || token === 0) return null;
    const feedsIt = (patch) => modality.keptIndex[patch] < 0 === (token === "extra");
    return tokenWeights(modality, token).map((value, patch) => (feedsIt(patch) ? value : null));
  }

  /** The ends of the colour scale, from all modalities that are shown. Sources lie in [0, 1] by definition. */
  function heatRange(modalities, state) {
    if (state.overlay === "scores" && state.source) return [0, 1];
    const all = modalities.flatMap((modality) => heatValues(modality, state) || []);
    return all.reduce(
      ([low, high], value) => (value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)]),
      [Infinity, -Infinity],
    );
  }

  /** The colour of each patch, null where the image stays as it is. */
  function patchColours(modality, state, [low, high]) {
    const values = heatValues(modality, state);
    if (values) {
      const colour = (value) => viridis((value - low) / (high - low || 1), HEAT_ALPHA);
      return values.map((value) => (value === null ? VEIL : colour(value)));
    }
    if (state.overlay === "tokens")
      return strongestTokens(modality).map((token) => (token < 0 ? VEIL : many(token, TOKEN_ALPHA)));
    return modality.keptIndex.map((k) => (k < 0 ? VEIL : null));
  }

  /** Lines where kept patches meet discarded ones or the border. */
  function keptEdges(keptIndex, [rows, columns]) {
    const kept = (row, column) =>
      row >= 0 && column >= 0 && row < rows && column < columns && keptIndex[row * columns + column] >= 0;
    const edges = new Path2D();
    const line = (x, y, dx, dy) => {
      edges.moveTo(x * PATCH, y * PATCH);
      edges.lineTo((x + dx) * PATCH, (y + dy) * PATCH);
    };
    for (let row = 0; row <= rows; row += 1) {
      for (let column = 0; column <= columns; column += 1) {
        if (kept(row, column) !== kept(row - 1, column)) line(column, row, 1, 0);
        if (kept(row, column) !== kept(row, column - 1)) line(column, row, 0, 1);
      }
    }
    return edges;
  }

  /** Draws the overlay of the state on a canvas that covers the image; `range` as from `heatRange`. */
  function paint(canvas, modality, state, range) {
    const [rows, columns] = REPORT.summary.grid;
    canvas.width = columns * PATCH;
    canvas.height = rows * PATCH;
    const context = canvas.getContext("2d");
    patchColours(modality, state, range).forEach((colour, patch) => {
      if (!colour) return;
      context.fillStyle = colour;
      context.fillRect((patch % columns) * PATCH, Math.floor(patch / columns) * PATCH, PATCH, PATCH);
    });
    if (state.overlay !== "kept") return;
    const edges = keptEdges(modality.keptIndex, [rows, columns]);
    for (const [colour, width] of Object.entries(OUTLINES)) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke(edges);
    }
  }

  REPORT.patches = { view, feeds, tokenWeights, heatRange, paint };
})();
