"use strict";

/** One triple: its modalities side by side, or one above the other where the images are wider than high. */
(function () {
  const { element } = REPORT.dom;

  const isWide = () => REPORT.summary.image.width > REPORT.summary.image.height;

  const missingNow = () => {
    const { settings } = REPORT.summary;
    return settings.find(({ id }) => id === REPORT.state.values.setting).missing;
  };

  function modalityImage(row, name, place, { labelled, focusable }) {
    const { modalities, triples } = REPORT.summary;
    // The file is a strip of all modalities: `object-fit: cover` shows the part at this position.
    const position = modalities.length > 1 ? (100 * place) / (modalities.length - 1) : 50;
    const image = element("img", {
      src: `images/${row}.jpg`,
      alt: `${name} of ${triples.names[row]}`,
      decoding: "async",
      draggable: "false",
      style: { "object-position": `${position}% 50%` },
      onerror: (event) => event.target.closest(".modality").classList.add("unreadable"),
    });
    return element(
      "div",
      { "class": "modality", "data-modality": name, "tabindex": focusable ? 0 : null },
      image,
      labelled && element("span", { class: "modality-name" }, name),
    );
  }

  /**
   * @param {number} row the triple.
   * @param {Object} options labelled: the modality is written on the image; focusable: its patches can be
   *     reached by keyboard.
   */
  function triple(row, options = {}) {
    const node = element(
      "div",
      { "class": `triple ${isWide() ? "wide" : ""}`, "data-row": row },
      REPORT.summary.modalities.map((name, place) => modalityImage(row, name, place, options)),
    );
    markMissing(node);
    return node;
  }

  /** Shows which modalities the model did not get in the present setting. */
  function markMissing(root) {
    const missing = missingNow();
    for (const node of root.querySelectorAll(".modality")) {
      node.classList.toggle("missing", missing.includes(node.dataset.modality));
    }
  }

  /** The shape of the images, for the style sheet. */
  function setShape() {
    const { image, modalities } = REPORT.summary;
    const shape = document.documentElement.style;
    shape.setProperty("--image-ratio", `${image.width} / ${image.height}`);
    shape.setProperty("--image-aspect", String(image.width / image.height));
    shape.setProperty("--modalities", String(modalities.length));
    document.documentElement.classList.toggle("wide-images", isWide());
  }

  REPORT.triple = { triple, setShape };
})();
