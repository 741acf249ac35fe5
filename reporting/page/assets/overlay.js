"use strict";

/** The overlay of all triples below one element, with its control and legend. */
(function () {
  const { element, segmented, markChoice } = REPORT.dom;
  const { fixed } = REPORT.words;
  const MODES = [
    ["off", "Off", "images only"],
    ["kept", "Kept", "kept patches outlined, discarded patches veiled"],
    ["scores", "Scores", "the score of each patch, and its sources"],
    ["tokens", "Tokens", "which patches feed which aggregated token"],
  ];

  /** "learned" where all modalities agree, "own" for "own: RGB" …, otherwise the name in each modality. */
  function sourceName(index) {
    const { sources, modalities } = REPORT.summary;
    const names = modalities.map((modality) => sources[modality][index]);
    const heads = new Set(names.map((name) => name.split(":")[0]));
    if (heads.size > 1) return names.join(" | ");
    return new Set(names).size > 1 ? [...heads][0] : names[0];
  }

  function sourceOptions() {
    const { sources, modalities } = REPORT.summary;
    const names = sources[modalities[0]].map((_, i) => [i + 1, sourceName(i)]);
    return [[0, "total"], ...names];
  }

  /** What the heat shows in one modality, for the caption of the image. */
  function sourceOf(modality) {
    const { source } = REPORT.state.values;
    return source ? REPORT.summary.sources[modality][source - 1] : "total";
  }

  /** The positions of the token slider: 0 all, 1 … tokens, then the extra token. */
  const sliderPlace = (token, tokens) => (token === "extra" ? tokens + 1 : Math.min(token, tokens));
  const tokenAt = (place, tokens) => (place > tokens ? "extra" : place);

  function tokenName(token, tokens) {
    if (token === 0) return "all, by colour";
    return token === "extra" ? "extra (of the discarded)" : `${Math.min(token, tokens)} of ${tokens}`;
  }

  class Overlay {
    /**
     * @param {Element} root its triples are painted.
     * @param {Element} holder gets the control.
     */
    constructor(root, holder) {
      this.root = root;
      this.tokens = 0;
      this.range = [0, 1];
      this.scheduled = false;
      if (!REPORT.summary.grid) return;
      this.buildControl(holder);
      REPORT.state.onChange((changed) => {
        if (["overlay", "source", "token", "setting"].some((name) => changed.has(name))) this.refresh();
      });
    }

    buildControl(holder) {
      const { state } = REPORT;
      this.modes = segmented({
        label: "Overlay",
        options: MODES.filter(([mode]) => state.overlaysOf(REPORT.summary).includes(mode)),
        value: state.values.overlay,
        onchange: (overlay) => state.set({ overlay }),
      });
      const source = element(
        "select",
        {
          "class": "source",
          "aria-label": "Source of the score",
          "onchange": (event) => state.set({ source: Number(event.target.value) }),
          "title": `Source of the score; where it differs: in ${REPORT.summary.modalities.join(" | ")}`,
        },
        sourceOptions().map(([value, text]) => element("option", { value }, text)),
      );
      const slider = element("input", {
        "type": "range",
        "class": "token",
        "min": 0,
        "aria-label": "Aggregated token",
        "oninput": (event) => state.set({ token: tokenAt(Number(event.target.value), this.tokens) }),
      });
      this.source = element("label", { class: "field" }, element("span", {}, "source"), source);
      this.token = element(
        "label",
        { class: "field" },
        element("span", {}, "token"),
        slider,
        element("output", { class: "token-name" }),
      );
      this.legend = element("div", { class: "legend" });
      holder.classList.add("overlay-control");
      holder.append(
        element("span", { class: "control-name" }, "Overlay"),
        this.modes,
        this.source,
        this.token,
        this.legend,
      );
    }

    /** Paints what is here and asks for what is not. Safe to call at any time. */
    refresh() {
      if (!REPORT.summary.grid) return;
      const { values } = REPORT.state;
      this.root.dataset.overlay = values.overlay;
      const shown = values.overlay === "off" ? [] : this.findModalities();
      if (values.overlay === "off") this.clear();
      this.tokens = shown.length ? shown[0].view.tokens : this.tokens;
      this.range = REPORT.paint.heatRange(
        shown.map(({ view }) => view),
        values,
      );
      for (const { node, view } of shown) this.paintOn(node, view);
      this.nameSources();
      this.showControl();
    }

    clear() {
      this.root.querySelectorAll(".modality canvas, .triple > .data-note").forEach((node) => node.remove());
      this.root.querySelectorAll(".triple").forEach((node) => node.classList.remove("loading"));
    }

    /** The modalities whose data is here: [{node, view}]. The others are asked for, and marked. */
    findModalities() {
      const { setting } = REPORT.state.values;
      const found = [];
      for (const triple of this.root.querySelectorAll(".triple")) {
        const row = Number(triple.dataset.row);
        const { data, error } = REPORT.data.peek("triple", row);
        triple.classList.toggle("loading", !data && !error);
        this.note(
          triple,
          error ? error.message : data && !data[setting] ? `no patches for "${setting}"` : "",
        );
        if (!data && !error)
          REPORT.data.load("triple", row).then(
            () => this.schedule(),
            () => this.schedule(),
          );
        if (!data || !data[setting]) continue;
        for (const node of triple.querySelectorAll(".modality:not(.missing)")) {
          found.push({ node, view: REPORT.patches.view(data[setting][node.dataset.modality]) });
        }
      }
      return found;
    }

    /** Says on the triple why it has no overlay; an empty text takes the note away. */
    note(triple, text) {
      const old = triple.querySelector(".data-note");
      if ((old ? old.textContent : "") === text) return;
      old?.remove();
      if (!text) return;
      triple.querySelectorAll("canvas").forEach((node) => node.remove());
      triple.append(element("span", { class: "data-note", title: text }, text));
    }

    /** Many files arrive at nearly the same time: paint once for all of them. */
    schedule() {
      if (this.scheduled) return;
      this.scheduled = true;
      requestAnimationFrame(() => {
        this.scheduled = false;
        this.refresh();
      });
    }

    paintOn(node, view) {
      let canvas = node.querySelector("canvas");
      if (!canvas) {
        canvas = element("canvas", { "aria-hidden": "true" });
        node.querySelector("img").after(canvas);
      }
      const { values } = REPORT.state;
      canvas.dataset.overlay = values.overlay;
      REPORT.paint.paint(canvas, view, values, this.range);
    }

    /** A source is not the same in every modality: the name on the image says which it is there. */
    nameSources() {
      const { overlay } = REPORT.state.values;
      for (const name of this.root.querySelectorAll(".modality-name")) {
        const { modality } = name.parentNode.dataset;
        name.textContent = overlay === "scores" ? `${modality} · ${sourceOf(modality)}` : modality;
      }
    }

    showControl() {
      const { overlay, source, token } = REPORT.state.values;
      markChoice(this.modes, overlay);
      this.source.hidden = overlay !== "scores";
      this.token.hidden = overlay !== "tokens";
      this.source.querySelector("select").value = String(source);
      const slider = this.token.querySelector("input");
      slider.disabled = !this.tokens;
      slider.max = String(this.tokens + 1);
      slider.value = String(sliderPlace(token, this.tokens));
      this.token.querySelector("output").textContent = tokenName(token, this.tokens);
      this.legend.replaceChildren(...this.legendParts());
    }

    legendParts() {
      const { overlay, source, token } = REPORT.state.values;
      const key = (className, text) =>
        element("span", { class: "legend-key" }, element("i", { class: className }), text);
      if (overlay === "off") return [];
      if (overlay === "kept") return [key("key-kept", "kept"), key("key-veiled", "discarded")];
      if (overlay === "tokens" && token === 0) {
        return [
          key("key-hues", "the token that the patch feeds most"),
          key("key-veiled", "discarded: feeds the extra token"),
        ];
      }
      const [low, high] = this.range.map((end) => fixed(end, overlay === "tokens" ? 3 : 2));
      const what = overlay === "tokens" ? "weight" : source ? "score" : "total score";
      const bar = element("i", { class: "scale", style: { background: REPORT.colours.viridisGradient() } });
      return [
        element(
          "span",
          { class: "legend-scale" },
          element("span", {}, what),
          element("span", { class: "scale-end" }, low),
          bar,
          element("span", { class: "scale-end" }, high),
        ),
        overlay === "tokens" ? key("key-veiled", token === "extra" ? "kept" : "discarded") : null,
      ].filter(Boolean);
    }
  }

  /** The next source or token, by keyboard. `step` is 1 or −1. */
  function stepDetail(step, tokens) {
    const { overlay, source, token } = REPORT.state.values;
    if (overlay === "scores") {
      const { length } = sourceOptions();
      REPORT.state.set({ source: (source + step + length) % length });
    } else if (overlay === "tokens" && tokens) {
      const places = tokens + 2;
      REPORT.state.set({ token: tokenAt((sliderPlace(token, tokens) + step + places) % places, tokens) });
    }
  }

  REPORT.overlay = { Overlay, stepDetail };
})();
