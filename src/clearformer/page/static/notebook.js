// A view in a notebook, as anywidget asks for it: `render({model, el})`, in a shadow so that neither restyles the other.
import { VIEWS } from "./app.js";
import { tellDark } from "./core/colours.js";
import { html, render } from "./core/html.js";
import { PageModel } from "./core/model.js";
import { decode } from "./core/wire.js";
import { Frame } from "./parts/frame.js";
import { bufferOf, Kernel } from "./sources/kernel.js";

const DARKER = 128; // than half of full brightness is a dark background

export default {
  /** @param {{model: any, el: HTMLElement}} props */
  render({ model, el }) {
    const kernel = new Kernel(model);
    const view = model.get("view");
    const own = new PageModel(view, (fields) => chosen(model, own, fields), kernel);
    const stop = followTraits(model, own);
    const place = shadowed(el, model.get("stylesheet"));
    render(html`<${Frame} id=${view} title=${model.get("title")} about=${model.get("about")} model=${own} view=${VIEWS[view]} canEnlarge=${false} />`, place);
    return () => {
      stop();
      kernel.close();
      render(null, place);
    };
  },
};

/** Select in Python what was selected here. @param {any} model @param {PageModel} own @param {any} fields */
function chosen(model, own, fields) {
  const before = model.get("selection");
  const after = { ...before, ...fields };
  own.look(after);
  if (JSON.stringify(after) === JSON.stringify(before)) return;
  if (!alike(model, before, after)) own.set("busy", true);
  model.set("selection", after);
  model.save_changes();
}

/** Whether two selections are alike in all that a view uses. @param {any} model @param {any} one @param {any} other */
function alike(model, one, other) {
  return model.get("uses").every((/** @type {string} */ field) => JSON.stringify(one[field]) === JSON.stringify(other[field]));
}

/** Keep the view's model as the traits are; the answer stops that. @param {any} model @param {PageModel} own */
function followTraits(model, own) {
  const select = () => own.look(model.get("selection"));
  const answer = () => {
    const { byteLength } = model.get("answer");
    if (byteLength) own.take(decode(bufferOf(model.get("answer"))), model.get("asked"));
    own.set("error", model.get("error"));
    own.set("busy", Boolean(byteLength) && !model.get("error") && !alike(model, model.get("asked"), model.get("selection"))); // another answer follows
  };
  select();
  answer();
  model.on("change:selection", select);
  model.on("change:answered", answer);
  return () => {
    model.off("change:selection", select);
    model.off("change:answered", answer);
  };
}

/** An element in a shadow of another, with styles of its own. @param {HTMLElement} el @param {string} styles */
function shadowed(el, styles) {
  const host = el.appendChild(document.createElement("div"));
  const dark = isOnDark(el);
  tellDark(dark);
  host.className = dark ? "is-dark" : "is-light";
  keepKeys(host);
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(styles);
  shadow.adoptedStyleSheets = [sheet];
  const place = shadow.appendChild(document.createElement("div"));
  place.className = "notebook";
  return place;
}

/**
 * Let keys that are pressed in a view be the view's alone. A notebook sees no field in a shadow, and would take "x" in it for
 * its own command: JupyterLab asks the attribute, the others hear what comes up.
 * @param {HTMLElement} host
 */
function keepKeys(host) {
  host.dataset.lmSuppressShortcuts = "true";
  host.addEventListener("keydown", (event) => event.stopPropagation());
}

/** Whether what stands behind an element is dark. @param {Element | null} el @returns {boolean} */
function isOnDark(el) {
  for (let at = el; at; at = at.parentElement ?? hostOf(at)) {
    const [r, g, b, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (b !== undefined && alpha > 0) return 0.299 * r + 0.587 * g + 0.114 * b < DARKER;
  }
  return false;
}

/** @param {Element} element */
function hostOf(element) {
  const root = element.getRootNode();
  return root instanceof ShadowRoot ? root.host : null;
}
