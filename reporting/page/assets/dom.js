"use strict";

/** The page's only global: every file adds one part to it. */
const REPORT = {};

/** Elements without markup strings: what comes from the data is only ever set as text or attribute. */
(function () {
  const SVG = "http://www.w3.org/2000/svg";
  const isAttributes = (value) => value?.constructor === Object;
  const isGiven = (value) => value !== null && value !== undefined && value !== false;

  function fill(node, parts) {
    const attributes = isAttributes(parts[0]) ? parts.shift() : {};
    for (const [name, value] of Object.entries(attributes)) {
      if (!isGiven(value)) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") Object.entries(value).forEach((entry) => node.style.setProperty(...entry));
      else if (name === "class") node.classList.add(...value.split(" ").filter(Boolean));
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...parts.flat(Infinity).filter(isGiven));
    return node;
  }

  /**
   * An HTML element.
   * @param {string} selector tag, id and classes, for example "p#count.note".
   * @param {...(Object|Node|string|Array)} parts first, if wanted, attributes: `on…` is a listener, `style` an
   *     object; null and false are left out. Then children: strings become text nodes.
   */
  function h(selector, ...parts) {
    const [tag, ...marks] = selector.split(/(?=[.#])/);
    const node = document.createElement(tag);
    if (tag === "button") node.type = "button";
    for (const mark of marks) {
      if (mark[0] === "#") node.id = mark.slice(1);
      else node.classList.add(mark.slice(1));
    }
    return fill(node, parts);
  }

  /** An SVG element of this tag; other arguments as for `h`. */
  const svg = (tag, ...parts) => fill(document.createElementNS(SVG, tag), parts);

  const byId = (id) => document.getElementById(id);

  /** Inputs with a label. */
  const field = (label, ...inputs) => h("label.field", h("span.muted", label), inputs);

  /** A labelled `<select>`. `options` are [value, text] pairs. */
  function select({ label, options, value, onchange, ...attributes }) {
    const choices = options.map(([key, text]) =>
      h("option", { value: key, selected: String(key) === String(value) }, text),
    );
    const listener = (event) => onchange(event.target.value);
    return field(label, h("select", { ...attributes, onchange: listener }, choices));
  }

  /** A round button with a sign. */
  const roundButton = (className, sign, label, onclick) =>
    h("button.round", { "class": className, "aria-label": label, "title": label, onclick }, sign);

  /** Buttons of which one is pressed. `options` are [value, text, title] triples. */
  function segmented({ label, options, value, id, onchange }) {
    const group = h(
      "div.segmented",
      { "role": "radiogroup", "aria-label": label, id },
      options.map(([key, text, title]) =>
        h("button", { "role": "radio", "data-value": key, title, "onclick": () => onchange(key) }, text),
      ),
    );
    markChoice(group, value);
    return moveByArrows(group);
  }

  /** Lets the arrow keys move the choice among the buttons of a group. */
  function moveByArrows(group) {
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const buttons = [...group.children];
      const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
      next.focus();
      next.click();
    });
    return group;
  }

  /** Marks the choice in a group of buttons without building it anew, so that focus stays. */
  function markChoice(group, value, attribute = "aria-checked") {
    for (const button of group.children) {
      const chosen = button.dataset.value === String(value);
      button.setAttribute(attribute, String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  /** A table. `heads` are rows of cells, `bodies` lists of rows; an empty body is left out. */
  function table(selector, heads, ...bodies) {
    const rows = heads.map((cells) => h("tr", cells));
    return h(
      selector,
      h("thead", rows),
      bodies.map((body) => body.length > 0 && h("tbody", body)),
    );
  }
  const columnHead = (text, attributes) => h("th", { scope: "col", ...attributes }, text);
  const rowHead = (...parts) => h("th", { scope: "row" }, parts);
  const number = (text, className) => h("td.number", { class: className }, text);

  /** A name and its value in a `<dl>`. */
  const fact = (name, value, className) =>
    h("div", { class: className }, h("dt.muted", name), h("dd", value));

  /** A titled box. */
  const card = (id, title, note, ...children) =>
    h("section.card", { id }, h("header", h("h2", title), note && h("p.note.muted", note)), children);

  /** Places a fixed element beside a point of the window, inside the window. */
  function placeBeside(node, x, y, gap = 14) {
    const { width, height } = node.getBoundingClientRect();
    const left = x + gap + width < window.innerWidth ? x + gap : x - gap - width;
    const top = Math.min(y + gap, window.innerHeight - height - 4);
    node.style.left = `${Math.max(4, left)}px`;
    node.style.top = `${Math.max(4, top)}px`;
  }

  /** Opens a modal dialog with the focus on itself, not on its first button: arrow keys work at once. */
  function openDialog(dialog) {
    if (!dialog.open) dialog.showModal();
    dialog.focus();
  }

  /** Closes a dialog by a click beside it, which lands on the dialog element itself. */
  const closeByClickBeside = (dialog) =>
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

  REPORT.dom = { h, svg, byId, field, select, roundButton, segmented, moveByArrows, markChoice, fact, card };
  Object.assign(REPORT.dom, { table, columnHead, rowHead, number });
  Object.assign(REPORT.dom, { placeBeside, openDialog, closeByClickBeside });
})();
