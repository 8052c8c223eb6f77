// What views are written with: htm templates of Preact components, and the traits of the model that a view is given.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";
import { h, render } from "../vendor/preact.js";

export const html = htm.bind(h);
export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/**
 * What a view is given: the part of anywidget's model that views use, and what the page adds to it (`core/model.js`).
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: any) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 * @property {(event: string, listener: () => void) => void} off
 * @property {(view: string) => any} beside
 * @property {import("../sources/source.js").Source} source
 */

/**
 * A trait's value, and the component drawn again whenever it changes.
 * @param {Model} model
 * @param {string} name
 */
export function useTrait(model, name) {
  const [, again] = useState(0);
  // Before the browser paints, so that no change falls between the first drawing and the listening.
  useLayoutEffect(() => {
    const listener = () => again((/** @type {number} */ n) => n + 1);
    model.on(`change:${name}`, listener);
    return () => model.off(`change:${name}`, listener);
  }, [model, name]);
  return model.get(name);
}

/**
 * Select something: the fields that are given change, all others stay.
 * @param {Model} model
 * @param {Partial<import("./selection.js").Selection>} fields
 */
export function select(model, fields) {
  model.set("selection", { ...model.get("selection"), ...fields });
  model.save_changes();
}

/** Whether a field cannot be selected anew, because nobody would answer. @param {Model} model @param {string} field */
export function isFixed(model, field) {
  return (model.get("fixed") ?? []).includes(field);
}

/**
 * A view from its component, as `render({model, el})` draws it.
 * @param {(props: {model: Model, found: any, both: any, selection: import("./selection.js").Selection}) => any} Component is given in `both` the first and the second of a difference, where `found` is one
 * @param {{hasControls?: boolean, byHand?: boolean, isReady?: (selection: any) => boolean}} [traits] a view with controls is also drawn where there is no answer (found is null), and says its notes itself; one by hand is asked for by its own controls alone, others once they are ready
 */
export function view(Component, { hasControls = false, byHand = false, isReady = () => true } = {}) {
  /** @param {{model: Model}} props */
  function View({ model }) {
    const found = useTrait(model, "found");
    const selection = useTrait(model, "selection");
    return found || (hasControls && selection) ? html`<${Component} model=${model} found=${found} both=${model.get("both")} selection=${selection} />` : null;
  }
  return {
    hasControls,
    byHand,
    isReady,
    /** @param {{model: Model, el: HTMLElement}} props */
    render({ model, el }) {
      render(html`<${View} model=${model} />`, el);
      return () => render(null, el);
    },
  };
}
