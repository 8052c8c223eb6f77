// The text as tokens, each coloured by how much it surprised the model.
import { html, select, view } from "../core/html.js";
import { number, signed, visible } from "../core/words.js";
import { fromStart, Strip } from "../parts/strip.js";

/** @param {{model: any, found: any, both: any, selection: any}} props */
function Tokens({ model, found, both, selection }) {
  const n = found.tokens.length;
  const chosen = fromStart(selection.position, n);
  const shifted = found.predicted[0] !== found.tokens[0] || found.source.length > 0;
  // What position i predicts comes at i + 1: a token's surprise stands with the token that came.
  const ofToken = (/** @type {import("../core/wire.js").NDArray} */ values) =>
    found.tokens.map((/** @type {string} */ _, /** @type {number} */ i) => (shifted ? (i ? values.data[i - 1] : NaN) : values.data[i]));
  const losses = ofToken(found.losses);
  const probabilities = ofToken(found.probabilities);
  const most = both ? Math.max(1e-9, ...losses.filter(Number.isFinite).map(Math.abs)) : found.uniform_loss;
  const shares = losses.map((/** @type {number} */ loss) => (Number.isFinite(loss) ? Math.min(1, loss / most) : 0));
  const [told, change] = both ? [signed, "change of the "] : [number, ""];
  const say = (/** @type {number} */ i) => (Number.isFinite(losses[i]) ? `${change}loss ${told(losses[i], 3)} nats, ${change}probability ${told(probabilities[i], 4)}` : "no prediction of it");
  const at = (/** @type {string} */ name) => told(found[name].data[chosen]) + (both ? ` (${number(both.first[name].data[chosen])} → ${number(both.second[name].data[chosen])})` : "");
  return html`<div class=${both ? "tokens is-difference" : "tokens"}>
    ${found.source.length > 0 && html`<p class="note">source</p><div class="strip is-quiet">${found.source.map((/** @type {string} */ token, /** @type {number} */ i) => html`<span key=${i}>${visible(token)}</span>`)}</div>`}
    <${Strip} tokens=${found.tokens} chosen=${chosen} name="tokens" shares=${shares} say=${say} onChoose=${(/** @type {number} */ position) => select(model, { position })} />
    <dl class="facts">
      <dt>position</dt><dd>${chosen} of ${n}</dd>
      <dt>token</dt><dd><code>${visible(found.tokens[chosen])}</code> id ${found.ids[chosen]}, ${found.n_bytes[chosen]} ${found.n_bytes[chosen] === 1 ? "byte" : "bytes"}</dd>
      <dt>predicts</dt><dd>${found.predicted[chosen] ? html`<code>${visible(found.predicted[chosen])}</code> with ${change}probability ${at("probabilities")}, ${change}loss ${at("losses")} nats` : "what the text does not tell"}</dd>
    </dl>
    ${both
      ? html`<p class="legend"><i class="swatch is-positive"></i> a larger loss than the first run's <i class="swatch is-negative"></i> a smaller one; darkest at ${number(most, 3)} nats</p>`
      : html`<p class="legend"><i></i> darker: more surprised; as dark as can be at ln V = ${number(most, 2)} nats, where all tokens are equally likely</p>`}
  </div>`;
}

export default view(Tokens);
