"use strict";

/** Draws patches over one image. */
(function () {
  const { viridis, many } = REPORT.colours;
  const { strongestTokens, tokenWeights } = REPORT.patches;
  /** Canvas pixels along one side of a patch; the style sheet scales the canvas to the image. */
  const PATCH = 16;
  const HEAT_ALPHA = 0.68;
  const TOKEN_ALPHA = 0.62;
  const VEIL = "rgba(223, 228, 237, 0.87)";
  const OUTLINE = "rgba(255, 255, 255, 0.95)";
  const OUTLINE_SHADE = "rgba(16, 32, 64, 0.75)";

  /**
   * The number that the heat shows for each patch, or null where the overlay is not a heat map. A patch that
   * cannot have a share in the token is null too: that is not a low value.
   */
  function heatValues(modality, { overlay, source, token }) {
    if (overlay === "scores") return modality.scores[source];
    if (overlay !== "tokens" || token === 0) return null;
    const feedsIt = (patch) => modality.place[patch] < 0 === (token === "extra");
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
    if (state.overlay === "tokens") {
      return strongestTokens(modality).map((token) => (token < 0 ? VEIL : many(token, TOKEN_ALPHA)));
    }
    return Array.from(modality.place, (k) => (k < 0 ? VEIL : null));
  }

  /** Lines where kept patches meet discarded ones or the border: [x1, y1, x2, y2] in patches. */
  function keptEdges(place, [rows, columns]) {
    const kept = (row, column) =>
      row >= 0 && column >= 0 && row < rows && column < columns && place[row * columns + column] >= 0;
    const edges = [];
    for (let row = 0; row <= rows; row += 1) {
      for (let column = 0; column <= columns; column += 1) {
        if (kept(row, column) !== kept(row - 1, column)) edges.push([column, row, column + 1, row]);
        if (kept(row, column) !== kept(row, column - 1)) edges.push([column, row, column, row + 1]);
      }
    }
    return edges;
  }

  function strokeEdges(context, edges, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    for (const [x1, y1, x2, y2] of edges) {
      context.moveTo(x1 * PATCH, y1 * PATCH);
      context.lineTo(x2 * PATCH, y2 * PATCH);
    }
    context.stroke();
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
    const edges = keptEdges(modality.place, [rows, columns]);
    strokeEdges(context, edges, OUTLINE_SHADE, 3);
    strokeEdges(context, edges, OUTLINE, 1.4);
  }

  REPORT.paint = { paint, heatRange };
})();
