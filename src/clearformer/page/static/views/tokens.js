// The text as tokens, each coloured by its surprise.
import { html, isFixed, select, useEffect, useMemo, useState, useTrait, view } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { number, signed, thousands, visible } from "../core/words.js";
import { goTo } from "../parts/going.js";
import { fromStart, Strip } from "../parts/strip.js";

const USES = ["run", "checkpoint", "text", "output", "masked", "position"];

/** @param {{model: any, found: any, both: any, selection: any}} props */
function Tokens({ model, found, both, selection }) {
  const asked = useTrait(model, "asked"); // of the text that is shown, which the selection may be ahead of
  const n = found.tokens.length;
  const chosen = fromStart(selection.position, n);
  // Where position i predicts the token at i + 1, the surprise is shown at that token. The last position then predicts none
  // of the text; an encoder without [MASK] predicts each token at its own position.
  const shifted = !found.mask && (found.source.length > 0 || !found.predicted[n - 1]);
  const ofToken = (/** @type {import("../core/wire.js").NDArray} */ values) =>
    found.tokens.map((/** @type {string} */ _, /** @type {number} */ i) => (shifted ? (i ? values.data[i - 1] : NaN) : values.data[i]));
  const losses = ofToken(found.losses);
  const probabilities = ofToken(found.probabilities);
  const most = both ? Math.max(1e-9, ...losses.filter(Number.isFinite).map(Math.abs)) : found.uniform_loss;
  const shares = losses.map((/** @type {number} */ loss) => (Number.isFinite(loss) ? Math.min(1, loss / most) : 0));
  const [told, change] = both ? [signed, "change of the "] : [number, ""];
  const say = (/** @type {number} */ i) => (Number.isFinite(losses[i]) ? `${change}loss ${told(losses[i], 3)} nats, ${change}probability ${told(probabilities[i], 4)}` : "not predicted");
  const at = (/** @type {string} */ name) => told(found[name].data[chosen]) + (both ? ` (${number(both.first[name].data[chosen])} → ${number(both.second[name].data[chosen])})` : "");
  return html`<div class=${both ? "tokens is-difference" : "tokens"}>
    ${found.source.length > 0 && html`<p class="note">source</p><div class="strip is-quiet">${found.source.map((/** @type {string} */ token, /** @type {number} */ i) => html`<span key=${i}>${visible(token)}</span>`)}</div>`}
    <${Strip} tokens=${found.tokens} chosen=${chosen} name="tokens" shares=${shares} say=${say} onChoose=${(/** @type {number} */ position) => select(model, { position })} onOpen=${found.mask && !isFixed(model, "masked") ? (/** @type {number} */ at) => turn(model, found, at) : undefined} />
    ${found.mask && html`<${Mask} model=${model} found=${found} chosen=${chosen} />`}
    <dl class="facts">
      <dt>position</dt><dd>${chosen} of ${n}</dd>
      <dt>token</dt><dd><code>${visible(found.tokens[chosen])}</code> id ${found.ids[chosen]}, ${found.n_bytes[chosen]} ${found.n_bytes[chosen] === 1 ? "byte" : "bytes"}</dd>
      <dt>predicts</dt><dd>${found.predicted[chosen] ? html`<code>${visible(found.predicted[chosen])}</code> with ${change}probability ${at("probabilities")}, ${change}loss ${at("losses")} nats` : "unknown"}</dd>
    </dl>
    <${Pieces} model=${model} selection=${{ ...asked, position: chosen }} />
    ${both
      ? html`<p class="legend"><i class="swatch is-positive"></i> a larger loss than in the first run <i class="swatch is-negative"></i> a smaller one; strongest at ${number(most, 3)} nats</p>`
      : html`<p class="legend"><i></i> stronger: more surprised; strongest at ln V = ${number(most, 2)} nats, when all tokens are equally likely</p>`}
  </div>`;
}

/** The bytes and merges of the chosen token, requested separately. @param {{model: any, selection: any}} props */
function Pieces({ model, selection }) {
  const pieces = useMemo(() => model.beside("pieces"), [model]);
  const found = useTrait(pieces, "found");
  const error = useTrait(pieces, "error");
  const key = keyOf(selection, USES);
  const [requested, setRequested] = useState("");
  useEffect(() => {
    setRequested(key);
    pieces.ask(selection);
  }, [key]);
  if (error && requested === key) return html`<p class="note">${error}</p>`;
  if (!found || keyOf(pieces.get("asked"), USES) !== key) return null; // of another token
  const { hex, code_points: points, steps, neighbours, rule, position } = found;
  return html`<dl class="pieces">
    <dt>bytes</dt><dd>${hex ? html`<code>${hex}</code>` : "none: a special token has no text"}${points.length > 0 && html` <small>${points.join(" ")}</small>`}</dd>
    ${steps.length > 1 && html`<dt>merges</dt><dd><ol>${steps.map((/** @type {any} */ step, /** @type {number} */ i) => html`<li key=${`${position} ${i}`}>${step.pieces.map((/** @type {string} */ piece) => html`<code>${visible(piece)}</code> `)}<small>${step.rank === null ? "its bytes" : `merge ${thousands(step.rank + 1)}`}</small></li>`)}</ol></dd>`}
    ${neighbours.length > 0 && html`<dt>word</dt><dd>${neighbours.map((/** @type {any} */ part) => html`<code class=${part.chosen ? "is-chosen" : ""}>${visible(part.token)}</code>${part.score !== null && html`<small> ln p = ${number(part.score, 2)}</small>`} `)}</dd>`}
    ${rule && hex && html`<dt></dt><dd><small>${rule}</small></dd>`}
  </dl>`;
}

/** The button that masks the chosen token for an encoder, which then predicts it. @param {{model: any, found: any, chosen: number}} props */
function Mask({ model, found, chosen }) {
  const isMasked = found.masked.includes(chosen);
  return html`<p class="actions"><button type="button" aria-pressed=${isMasked} disabled=${isFixed(model, "masked")} onClick=${() => turn(model, found, chosen)}>${isMasked ? "Show" : "Mask"} <code>${visible(isMasked ? found.predicted[chosen] : found.tokens[chosen])}</code> at ${chosen}</button>
    ${found.masked.length > 0 && html`<button type="button" disabled=${isFixed(model, "masked")} onClick=${() => select(model, { masked: [] })}>Show all</button> ${model.source.hasOthers && html`<button type="button" onClick=${() => goTo("sampling")}>What the model fills in</button>`}`}
    <span class="note">Enter or a double click on a token masks it or shows it again</span></p>`;
}

/** Mask or unmask a token. @param {any} model @param {any} found @param {number} at */
function turn(model, found, at) {
  const others = found.masked.filter((/** @type {number} */ each) => each !== at);
  const masked = others.length < found.masked.length ? others : [...others, at].sort((a, b) => a - b);
  select(model, { position: at, masked });
}

export default view(Tokens);
