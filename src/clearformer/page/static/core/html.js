// The basis of all views: htm templates of Preact components, and the traits of a view's model.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";
import { h, render } from "../vendor/preact.js";

export const html = htm.bind(h);
export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/**
 * A view's model: the part of anywidget's model that views use, and the page's additions (`core/model.js`).
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
 * Return a trait's value, and render the component again whenever it changes.
 * @param {Model} model
 * @param {string} name
 */
export function useTrait(model, name) {
  const [, again] = useState(0);
  // A layout effect, so that no change is missed between the first rendering and the subscription.
  useLayoutEffect(() => {
    const listener = () => again((/** @type {number} */ n) => n + 1);
    model.on(`change:${name}`, listener);
    return () => model.off(`change:${name}`, listener);
  }, [model, name]);
  return model.get(name);
}

/**
 * Change the given fields of the selection; all others stay.
 * @param {Model} model
 * @param {Partial<import("./selection.js").Selection>} fields
 */
export function select(model, fields) {
  model.set("selection", { ...model.get("selection"), ...fields });
  model.save_changes();
}

/** Whether a field cannot be changed, because no model is there to answer. @param {Model} model @param {string} field */
export function isFixed(model, field) {
  return (model.get("fixed") ?? []).includes(field);
}

/**
 * Make a view, with a method `render({model, el})`, from a component.
 * @param {(props: {model: Model, found: any, both: any, selection: import("./selection.js").Selection}) => any} Component if `found` is a difference, `both` has the values of the first and the second run
 * @param {{hasControls?: boolean, byHand?: boolean, isReady?: (selection: any) => boolean}} [traits] a view with controls is also rendered without an answer (found is null), and shows its notes itself; a view by hand is requested only by its own controls, all others once `isReady`
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
