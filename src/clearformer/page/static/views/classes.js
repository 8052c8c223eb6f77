// The classes of a text with their probabilities, and each token's contribution to the logit of one.
import { html, isFixed, select, useState, view } from "../core/html.js";
import { number, signed, tiny, visible } from "../core/words.js";
import { Shares } from "../parts/shares.js";

const METHODS = ["integrated gradients", "gradient x input", "occlusion"];
const AT_FIRST = 12;

/** @param {{model: any, found: any, selection: any}} props */
function Classes({ model, found, selection }) {
  return html`<div class="classes">
    <fieldset class="settings" disabled=${isFixed(model, "method")} aria-label="attribution method">
      <label>Method<select name="method" value=${selection.method} onChange=${(/** @type {any} */ event) => select(model, { method: event.target.value })}>${METHODS.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
    </fieldset>
    ${found && html`<${Chances} model=${model} found=${found} />`}
    ${found && html`<${Contributions} found=${found} />`}
  </div>`;
}

/** The classes, likeliest first; a click makes one the target. @param {{model: any, found: any}} props */
function Chances({ model, found }) {
  const [all, setAll] = useState(false);
  const shown = all ? found.classes : found.classes.slice(0, AT_FIRST);
  return html`<section><h3>Classes</h3><ul class="bars" aria-label="classes by probability">
    ${shown.map((/** @type {any} */ each) => html`<li key=${each.name} class=${each.name === found.target ? "is-chosen" : ""}><button type="button" aria-current=${each.name === found.target ? "true" : undefined} disabled=${isFixed(model, "target")} title=${`logit ${signed(each.logit)}`} onClick=${() => select(model, { target: each.name })}>
      <span class="bar-name">${each.name}</span><span class="bar-track"><i class="is-amount" style=${{ left: 0, width: `${100 * each.probability}%` }}></i></span><span class="bar-value">${number(each.probability)}</span></button></li>`)}
    </ul>${shown.length < found.classes.length && html`<button type="button" onClick=${() => setAll(true)}>show ${found.classes.length - shown.length} more</button>`}
    <p class="note">choose the class whose logit is explained</p></section>`;
}

/** @param {{found: any}} props */
function Contributions({ found }) {
  const { labels, values, method, baseline } = found.attribution;
  const most = Math.max(...values.map((/** @type {number | null} */ value) => Math.abs(value ?? 0)));
  const foil = found.foil ? ` − ${visible(found.foil)}` : "";
  const shares = labels.map((/** @type {string} */ token, /** @type {number} */ i) => ({ token, value: values[i], words: String(i) }));
  return html`<section><p class="sum">${method}: what each token contributes to the logit of <code>${visible(found.target)}${foil}</code>, <b>${signed(found.logit)}</b>
      ${found.missed === null
        ? html`<span class="badge">the contributions sum to ${signed(found.sum)}; with this method they need not sum to the logit</span>`
        : html`<span class="badge" title="completeness: the sum of the contributions minus (logit − baseline)">sum − (logit − baseline) = ${tiny(found.missed)}</span> <span class="badge">baseline, all embeddings their mean: ${signed(baseline)}</span>`}</p>
    <${Shares} shares=${shares} most=${most} name="the contribution of each token" /></section>`;
}

export default view(Classes, { hasControls: true });
