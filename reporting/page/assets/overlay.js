"use strict";

/** The overlay of all triples below one element, with its control and legend. */
(function () {
  const { h, field, select, segmented, markChoice } = REPORT.dom;
  const { fixed } = REPORT.words;
  const { viridis, legendKey, legendScale } = REPORT.colours;
  const MODES = [
    ["off", "Off", "images only"],
    ["kept", "Kept", "kept patches outlined, discarded patches veiled"],
    ["scores", "Scores", "the score of each patch, and its sources"],
    ["tokens", "Tokens", "which patches feed which aggregated token"],
  ];

  /** The modes that a report has: slimming selects patches, but aggregates no tokens. */
  function modes() {
    const { grid, has_tokens: hasTokens } = REPORT.summary;
    return MODES.filter(([mode]) => mode === "off" || (grid && (mode !== "tokens" || hasTokens !== false)));
  }

  const modeNames = () => modes().map(([mode]) => mode);

  /** "learned" where all modalities agree, "own" for "own: RGB" …, otherwise the name in each modality. */
  function sourceName(index) {
    const { sources, modalities } = REPORT.summary;
    const names = modalities.map((modality) => sources[modality][index]);
    const heads = new Set(names.map((name) => name.split(":")[0]));
    if (heads.size > 1) return names.join(" | ");
    return new Set(names).size > 1 ? [...heads][0] : names[0];
  }

  function sourceNames() {
    const { sources, modalities } = REPORT.summary;
    return ["total", ...sources[modalities[0]].map((_, i) => sourceName(i))];
  }

  /** The positions of the token slider: 0 all, 1 … tokens, then the extra token. */
  const sliderPosition = (token, tokens) => (token === "extra" ? tokens + 1 : Math.min(token, tokens));
  const tokenAt = (position, tokens) => (position > tokens ? "extra" : position);

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
      holder.hidden = !REPORT.summary.grid;
      if (holder.hidden) return;
      this.buildControl(holder);
      REPORT.state.onChange((changed) => {
        if (["overlay", "source", "token", "condition"].some((name) => changed.has(name))) this.refresh();
      });
    }

    buildControl(holder) {
      const { values, set } = REPORT.state;
      this.modes = segmented({
        label: "Overlay",
        options: modes(),
        value: values.overlay,
        onchange: (overlay) => set({ overlay }),
      });
      this.source = select({
        "label": "source",
        "class": "source",
        "aria-label": "Source of the score",
        "title": `Source of the score; where it differs: in ${REPORT.summary.modalities.join(" | ")}`,
        "options": sourceNames().map((name, i) => [i, name]),
        "onchange": (source) => set({ source: Number(source) }),
      });
      this.slider = h("input.token", {
        "type": "range",
        "min": 0,
        "aria-label": "Aggregated token",
        "oninput": ({ target }) => set({ token: tokenAt(Number(target.value), this.tokens) }),
      });
      this.tokenName = h("output.token-name");
      this.token = field("token", this.slider, this.tokenName);
      this.legend = h("div.legend.muted");
      holder.classList.add("control-bar");
      holder.append(h("span.muted", "Overlay"), this.modes, this.source, this.token, this.legend);
    }

    /** Paints what is here and asks for what is not. Safe to call at any time. */
    refresh() {
      if (!REPORT.summary.grid) return;
      const { values } = REPORT.state;
      this.root.dataset.overlay = values.overlay;
      const shown = values.overlay === "off" ? [] : this.findModalities();
      if (values.overlay === "off") this.clear();
      if (shown.length) this.tokens = shown[0].view.tokens;
      const views = shown.map(({ view }) => view);
      this.range = REPORT.patches.heatRange(views, values);
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
      const { condition } = REPORT.state.values;
      const found = [];
      for (const triple of this.root.querySelectorAll(".triple")) {
        const row = Number(triple.dataset.row);
        const { data, error } = REPORT.data.peek("triple", row);
        const repaint = () => this.schedule();
        if (!data && !error) REPORT.data.load("triple", row).then(repaint, repaint);
        triple.classList.toggle("loading", !data && !error);
        const part = data?.[condition];
        this.note(triple, error ? error.message : data && !part ? `no patches for "${condition}"` : "");
        if (!part) continue;
        for (const node of triple.querySelectorAll(".modality:not(.missing)"))
          found.push({ node, view: REPORT.patches.view(part[node.dataset.modality]) });
      }
      return found;
    }

    /** Says on the triple why it has no overlay; an empty text takes the note away. */
    note(triple, text) {
      const old = triple.querySelector(".data-note");
      if ((old?.textContent || "") === text) return;
      old?.remove();
      if (!text) return;
      triple.querySelectorAll("canvas").forEach((node) => node.remove());
      triple.append(h("span.data-note", { title: text }, text));
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
      const { values } = REPORT.state;
      let canvas = node.querySelector("canvas");
      if (!canvas) {
        canvas = h("canvas", { "aria-hidden": "true" });
        node.querySelector("img").after(canvas);
      }
      canvas.dataset.overlay = values.overlay;
      REPORT.patches.paint(canvas, view, values, this.range);
    }

    /** A source is not the same in every modality: the name on the image says which it is there. */
    nameSources() {
      const { overlay, source } = REPORT.state.values;
      for (const name of this.root.querySelectorAll(".modality-name")) {
        const { modality } = name.parentNode.dataset;
        const shown = source ? REPORT.summary.sources[modality][source - 1] : "total";
        name.textContent = overlay === "scores" ? `${modality} · ${shown}` : modality;
      }
    }

    showControl() {
      const { overlay, source, token } = REPORT.state.values;
      markChoice(this.modes, overlay);
      this.source.hidden = overlay !== "scores";
      this.token.hidden = overlay !== "tokens";
      this.source.querySelector("select").value = String(source);
      this.slider.disabled = !this.tokens;
      this.slider.max = String(this.tokens + 1);
      this.slider.value = String(sliderPosition(token, this.tokens));
      this.tokenName.textContent = tokenName(token, this.tokens);
      this.legend.replaceChildren(...this.legendParts());
    }

    legendParts() {
      const { overlay, source, token } = REPORT.state.values;
      const veiled = (text) => legendKey("key-veiled", text);
      if (overlay === "off") return [];
      if (overlay === "kept") return [legendKey("key-kept", "kept"), veiled("discarded")];
      if (overlay === "tokens" && token === 0) {
        const hues = legendKey("key-hues", "the token that the patch feeds most");
        return [hues, veiled("discarded: feeds the extra token")];
      }
      const ends = this.range.map((end) => fixed(end, overlay === "tokens" ? 3 : 2));
      const scale = legendScale(viridis, ...ends);
      if (overlay === "scores") return [source ? "score" : "total score", scale];
      return ["weight", scale, veiled(token === "extra" ? "kept" : "discarded")];
    }
  }

  /** The next source or token, by keyboard. `step` is 1 or −1. */
  function stepDetail(step, tokens) {
    const { values, set } = REPORT.state;
    const next = (position, length) => (position + step + length) % length;
    if (values.overlay === "scores") set({ source: next(values.source, sourceNames().length) });
    if (values.overlay === "tokens" && tokens)
      set({ token: tokenAt(next(sliderPosition(values.token, tokens), tokens + 2), tokens) });
  }

  REPORT.overlay = { Overlay, stepDetail, modeNames };
})();
