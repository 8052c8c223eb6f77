// Several continuations of the text, token by token.
import { html, isFixed, select, useTrait, view } from "../core/html.js";
import { number } from "../core/words.js";
import { Drawn, largest, SurpriseLegend } from "../parts/drawn.js";
import { NumberField } from "../parts/fields.js";

/** @param {{model: any, found: any, selection: any}} props */
function Continuations({ model, found, selection }) {
  return html`<div class="desk">
    <fieldset class="settings" disabled=${isFixed(model, "num")} aria-label="continuations">
      <${NumberField} label="Continuations" name="num" value=${selection.num} low=${1} high=${16} onChange=${(/** @type {number} */ num) => select(model, { num })} />
      <${NumberField} label="Tokens each" name="new_tokens" value=${selection.new_tokens} low=${1} high=${256} onChange=${(/** @type {number} */ new_tokens) => select(model, { new_tokens })} />
    </fieldset>
    ${found && html`<${List} model=${model} found=${found} />`}
  </div>`;
}

/** @param {{model: any, found: any}} props */
function List({ model, found }) {
  const { drawn } = useTrait(model, "asked"); // which these continue; the selection may be ahead of them
  const most = largest(found.continuations);
  const upTo = (/** @type {any} */ each, /** @type {number} */ place) => [...drawn, ...each.tokens.slice(0, place + 1).map((/** @type {any} */ token) => token.id)];
  return html`<div>
    <ol class="continuations" aria-label="continuations">
      ${found.continuations.map((/** @type {any} */ each, /** @type {number} */ i) => html`<li key=${i}>
        <small>${i}</small>
        <${Drawn} tokens=${each.tokens} most=${most} onChoose=${isFixed(model, "drawn") ? undefined : (/** @type {number} */ place) => select(model, { drawn: upTo(each, place) })} />
        <span class="bar-value" title="the log-probability of all its tokens under the model">log P ${number(each.logprob, 2)}${each.finish_reason === "eos" ? ", ended" : ""}</span>
      </li>`)}
    </ol>
    <${SurpriseLegend} most=${most} />
    ${!isFixed(model, "drawn") && html`<p class="note">Click a token to continue after it on the sampling desk.</p>`}
  </div>`;
}

export default view(Continuations, { hasControls: true });
