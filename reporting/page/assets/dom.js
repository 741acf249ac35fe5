"use strict";

/** The page's only global: every file adds one part to it. */
const REPORT = {};

/** Elements without markup strings: what comes from the data is only ever set as text or attribute. */
(function () {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style")
        Object.entries(value).forEach(([key, text]) => node.style.setProperty(key, text));
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(
      ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
    );
    return node;
  }

  /**
   * An HTML element.
   * @param {string} tag
   * @param {Object} [attributes] `on…` is a listener, `style` an object; null and false are left out.
   * @param {...(Node|string|Array)} children strings become text nodes.
   */
  function element(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  /** An SVG element; arguments as for `element`. */
  function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  /** A `<select>` with a visible or hidden label. `options` are [value, text] pairs. */
  function select({ label, options, value, id, onchange, title }) {
    const choices = options.map(([key, text]) =>
      element("option", { value: key, selected: String(key) === String(value) }, text),
    );
    const input = element(
      "select",
      { id, title, onchange: (event) => onchange(event.target.value) },
      choices,
    );
    return element("label", { class: "field" }, element("span", {}, label), input);
  }

  /**
   * Buttons of which one is pressed. `options` are [value, text, title] triples.
   * The arrow keys move the choice, as in a group of radio buttons.
   */
  function segmented({ label, options, value, id, onchange }) {
    const group = element("div", { "class": "segmented", "role": "radiogroup", "aria-label": label, id });
    for (const [key, text, title] of options) {
      const chosen = String(key) === String(value);
      group.append(
        element(
          "button",
          {
            "type": "button",
            "role": "radio",
            "aria-checked": String(chosen),
            "tabindex": chosen ? 0 : -1,
            "data-value": key,
            title,
            "onclick": () => onchange(key),
          },
          text,
        ),
      );
    }
    group.addEventListener("keydown", (event) => moveChoice(event, group));
    return group;
  }

  function moveChoice(event, group) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...group.children];
    const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  }

  /** Marks the choice of a `segmented` group without building it anew, so that focus stays. */
  function markChoice(group, value) {
    for (const button of group.children) {
      const chosen = button.dataset.value === String(value);
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  /** A titled box. */
  function card(title, { note, id } = {}, ...children) {
    return element(
      "section",
      { class: "card", id },
      element("header", {}, element("h2", {}, title), note && element("p", { class: "note" }, note)),
      children,
    );
  }

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

  REPORT.dom = { element, svg, select, segmented, markChoice, card, placeBeside, openDialog };
})();
