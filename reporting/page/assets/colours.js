"use strict";

/** Colour scales and their legends. */
(function () {
  const { h } = REPORT.dom;
  /** Viridis at ten even steps, dark blue to yellow. */
  const VIRIDIS = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725"
    .split(" ")
    .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  /** Few categories: cameras, parts. Distinct also for most colour-blind people. */
  const FEW = ["#1f56c4", "#c77700", "#00806b", "#a8327e", "#5f6b7c", "#4aa3df", "#8a5a00", "#7b52c7"];
  /** The turn that spreads any number of hues most evenly. */
  const GOLDEN_ANGLE = 137.508;
  /** Lines of the return patterns, by their index in the list. */
  const PATTERNS = ["#5f6b7c", "#c77700", "#1f56c4"];
  const PATTERN_DASHES = ["2 3", "6 3", null];

  const clamp = (value) => Math.min(Math.max(value, 0), 1);

  /** The colour of a value in [0, 1]. */
  function viridis(value, alpha = 1) {
    const at = clamp(value) * (VIRIDIS.length - 1);
    const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
    const channels = VIRIDIS[low].map((channel, i) =>
      Math.round(channel + (VIRIDIS[low + 1][i] - channel) * (at - low)),
    );
    return `rgba(${channels.join(",")},${alpha})`;
  }

  /** One of many: neighbours in number differ in hue, and in lightness by turns. */
  function many(index, alpha = 1) {
    const lightness = [46, 62, 36][index % 3];
    return `hsla(${((index * GOLDEN_ANGLE) % 360).toFixed(1)}, 68%, ${lightness}%, ${alpha})`;
  }

  const few = (index) => FEW[index % FEW.length];

  /** A tint of the accent for a value in [0, 1]; black text is readable on all of it. */
  const tint = (value) => `hsl(217, 80%, ${(97 - 31 * clamp(value)).toFixed(1)}%)`;

  /** The legend of one colour or sign. */
  const legendKey = (className, text, background) =>
    h("span.legend-key", h("i", { class: className, style: background && { background } }), text);

  /** The legend of a colour map, with texts at its ends. */
  function legendScale(colour, ...ends) {
    const steps = colour === viridis ? VIRIDIS.length - 1 : 1;
    const stops = Array.from({ length: steps + 1 }, (_, i) => colour(i / steps));
    const background = `linear-gradient(to right, ${stops.join(", ")})`;
    const [low, high] = ends.map((end) => h("span.scale-end", end));
    return h("span.legend-scale", low, h("i.scale", { style: { background } }), high);
  }

  REPORT.colours = { viridis, many, few, tint, legendKey, legendScale, PATTERNS, PATTERN_DASHES };
})();
