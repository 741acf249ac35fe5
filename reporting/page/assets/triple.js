"use strict";

/** One triple: its modalities side by side, or one above the other where the images are wider than high. */
(function () {
  const { h } = REPORT.dom;

  const isWide = () => REPORT.summary.image.width > REPORT.summary.image.height;

  function modalityImage(row, name, index, { labelled, focusable, side = "query" }) {
    const { modalities, triples } = REPORT.summary;
    // The file is a strip of all modalities: `object-fit: cover` shows the part at this position.
    const position = modalities.length > 1 ? (100 * index) / (modalities.length - 1) : 50;
    const missing = REPORT.words.isMissing(row, name, side);
    const image = h("img", {
      src: `images/${row}.jpg`,
      alt: `${name} of ${triples.names[row]}`,
      decoding: "async",
      draggable: "false",
      style: { "object-position": `${position}% 50%` },
      onerror: (event) => event.target.parentNode.classList.add("unreadable"),
    });
    return h(
      "div.modality",
      { "class": missing && "missing", "data-modality": name, "tabindex": focusable ? 0 : null },
      image,
      labelled && h("span.modality-name", name),
    );
  }

  /**
   * @param {number} row the triple.
   * @param {Object} options labelled: the modality is written on the image; focusable: its patches can be
   *     reached by keyboard; side: "query" or "gallery", which may have different modalities.
   */
  function triple(row, options = {}) {
    const images = REPORT.summary.modalities.map((name, index) => modalityImage(row, name, index, options));
    return h("div.triple", { "class": isWide() && "wide", "data-row": row }, images);
  }

  /** The shape of the images, for the style sheet. */
  function setShape() {
    const { image, modalities } = REPORT.summary;
    const { style, classList } = document.documentElement;
    style.setProperty("--image-ratio", `${image.width} / ${image.height}`);
    style.setProperty("--image-aspect", String(image.width / image.height));
    style.setProperty("--modalities", String(modalities.length));
    classList.toggle("wide-images", isWide());
  }

  REPORT.triple = { triple, setShape };
})();
