"use strict";

/** Numbers and names as the page shows them. */
(function () {
  const NONE = "–";
  const SMALLEST = 0.0001;
  const MINUS = "−";
  const PROTOCOLS = {
    camera: "gallery images of the same person and camera as the query are left out",
    scene: "gallery images of the same person and scene as the query are left out",
    none: "no gallery image is left out",
  };

  const naturalOrder = new Intl.Collator("en", { numeric: true });

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  /** 81.34 → "81.3"; no value → "–". */
  const fixed = (value, digits = 1) => (isNumber(value) ? value.toFixed(digits).replace("-", MINUS) : NONE);

  /** A difference with its sign: "+1.2", "−9.3", "0.0". */
  function signed(value) {
    if (!isNumber(value)) return NONE;
    return value > 0.05 ? `+${fixed(value)}` : fixed(Math.abs(value) <= 0.05 ? 0 : value);
  }

  /** Small and large numbers in about three digits. */
  function compact(value) {
    if (!isNumber(value)) return NONE;
    const size = Math.abs(value);
    if (size > 0 && size < SMALLEST) return `< ${SMALLEST}`;
    return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 4);
  }

  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

  const conditionName = ({ missing }) => (missing.length ? `without ${missing.join(", ")}` : "complete");
  const conditionNow = () => REPORT.summary.conditions.find(({ id }) => id === REPORT.state.values.condition);
  /** The cell of the any-to-any matrix whose rank lists are shown, or undefined. */
  const cellNow = () => REPORT.summary.any_to_any?.cells.find(({ id }) => id === REPORT.state.values.cell);
  const cellName = ({ query, gallery }) => `${query.join(" + ")} → ${gallery.join(" + ")}`;
  /** Whether an image of a triple is not there: not in the data, or taken away on this side. */
  function isMissing(row, modality, side) {
    if (REPORT.summary.triples.absent?.[modality]?.includes(row)) return true;
    const cell = cellNow();
    return cell ? !cell[side].includes(modality) : conditionNow().missing.includes(modality);
  }
  const patternNow = () => REPORT.summary.patterns.find(({ id }) => id === REPORT.state.values.pattern).name;

  function protocolSentence({ protocol, re_ranking: reRanking, gallery_size: gallery, queries }) {
    const rule = PROTOCOLS[protocol] || String(protocol);
    const size = `${count(queries.length, "query", "queries")} against ${gallery?.toLocaleString("en")}; `;
    return `${gallery ? size : ""}${rule}${reRanking ? "; k-reciprocal re-ranking" : ""}`;
  }

  /** Numbers by size, anything else by its letters, with "cam 10" after "cam 2". */
  function compareValues(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return naturalOrder.compare(String(a), String(b));
  }

  /** "cam 2" for a number; a name stays as it is. */
  const cameraName = (camera) => (/^\d/.test(String(camera)) ? `cam ${camera}` : String(camera));

  /** The camera of a triple, and its scene where the protocol goes by scenes; short for narrow captions. */
  function cameraOf(row, { short = false } = {}) {
    const { triples, protocol } = REPORT.summary;
    const camera = cameraName(triples.camera[row]);
    if (protocol !== "scene") return camera;
    const scene = triples.scene[row];
    return short ? `${camera.replace("cam ", "c")} · s${scene}` : `${camera} · scene ${scene}`;
  }

  const person = (row) => REPORT.summary.triples.person[row];

  REPORT.words = { NONE, isNumber, fixed, signed, compact, count, compareValues, protocolSentence };
  Object.assign(REPORT.words, { conditionName, conditionNow, patternNow, cameraName, cameraOf, person });
  Object.assign(REPORT.words, { cellNow, cellName, isMissing });
})();
