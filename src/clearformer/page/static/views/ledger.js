// A logit as the sum of the contributions of all parts, with the error of the sum.
import { html, view } from "../core/html.js";
import { signed, tiny, visible } from "../core/words.js";
import { explain, HEAD, headOf, Writers } from "../parts/writers.js";

const AT_FIRST = 24;

/** @param {{model: any, found: any, both: any, selection: any}} props */
function Ledger({ model, found, both, selection }) {
  const isChosen = (/** @type {any} */ part) => HEAD.test(part.name) && part.layer === selection.layer && part.head === selection.head && headOf(part).part === selection.part;
  const foil = found.foil ? ` − ${visible(found.foil)}` : "";
  return html`<div class="ledger">
    <p class="sum">${both ? "change of the logit of" : "logit of"} <code>${visible(found.target)}${foil}</code> ${found.token ? html`after <code>${visible(found.token)}</code>` : "of the text"}: <b>${signed(found.logit)}</b>
      ${both && html`<span class="badge">${signed(both.first.logit)} → ${signed(both.second.logit)}</span>`}
      <span class="badge" title="how far the sum of the parts is from the logit">|sum − logit| = ${both ? `${tiny(both.first.error)} and ${tiny(both.second.error)}` : tiny(found.error)}</span>
      ${!both && found.capped !== null && html`<span class="badge">after the soft cap of ${found.soft_cap}: ${signed(found.capped)}</span>`}</p>
    <${ByLayer} layers=${found.by_layer} />
    <${Writers} parts=${found.parts} name="parts of the logit" atFirst=${AT_FIRST} isChosen=${isChosen} open=${(/** @type {any} */ part) => explain(model, part, found.token ? found.position : selection.position)} />
    ${model.source.hasOthers && html`<p class="note">press a head to see the score of the key that it reads most</p>`}
  </div>`;
}

/** The sum after each layer, from left to right. @param {{layers: {name: string, value: number, so_far: number}[]}} props */
function ByLayer({ layers }) {
  const steps = layers.map(({ name, value, so_far: to }, i) => ({ name, value, from: i ? layers[i - 1].so_far : 0, to }));
  const low = Math.min(0, ...steps.flatMap((step) => [step.from, step.to]));
  const span = Math.max(0, ...steps.flatMap((step) => [step.from, step.to])) - low || 1;
  return html`<ol class="waterfall" aria-label="the logit after each layer">
    ${steps.map(({ name, value, from, to }) => html`<li key=${name} title=${`${name}: ${signed(value)}, so far ${signed(to)}`}>
      <span><i class=${to < from ? "is-negative" : "is-positive"} style=${{ bottom: `${(100 * (Math.min(from, to) - low)) / span}%`, height: `${(100 * Math.abs(to - from)) / span}%` }}></i></span>
      <b>${signed(value, 2)}</b><small>${name}</small></li>`)}
  </ol>`;
}

export default view(Ledger);
