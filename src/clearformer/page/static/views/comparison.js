// Two runs compared: the loss of each token, the distances of weights and activations, and the matching of heads.
import { html, select, useEffect, useMemo, useState, useTrait, view } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { number, signed, visible } from "../core/words.js";
import { Bars } from "../parts/bars.js";
import { Taking } from "../parts/frame.js";
import { HeatMap } from "../parts/heatmap.js";

const USES = ["run", "checkpoint", "versus", "versus_checkpoint", "text"];
const MOST = 12;
const HEAD = /blocks\.(\d+)\.(attn|cross_attn):(\d+)$/;

/** @typedef {{name: string, norm: number, change: number, cosine: number}} Distance */

/** @param {{model: any, found: any, selection: any}} props */
function Comparison({ model, found, selection }) {
  const worst = [...found.losses].sort((a, b) => Math.abs(b.other - b.loss) - Math.abs(a.other - a.loss)).slice(0, MOST);
  const bars = worst.map((each) => ({
    name: `${each.position} ${visible(each.token)} → ${visible(each.target)}`,
    value: each.other - each.loss,
    chosen: each.position === selection.position,
    open: () => select(model, { position: each.position }),
  }));
  return html`<div class="comparison">
    ${found.losses.length > 0 && html`<p class="sum">mean loss <b>${number(found.loss)}</b> → <b>${number(found.other)}</b> nats</p>
      <h3>loss of each token, second minus first: the largest changes</h3><${Bars} bars=${bars} name="changes of the loss" say=${(/** @type {number} */ value) => signed(value, 3)} />`}
    <div class="two-lists distances">
      <${Distances} title="Weights, part by part" distances=${found.weights} />
      <${Distances} title="Activations, furthest apart" distances=${[...found.activations].sort((a, b) => relative(b) - relative(a)).slice(0, MOST)} />
    </div>
    <${Heads} model=${model} selection=${selection} />
  </div>`;
}

/** Distances as |b − a| / |a|. @param {{title: string, distances: Distance[]}} props */
function Distances({ title, distances }) {
  const bars = distances.map((each) => ({ name: each.name.replace("hook_", ""), value: relative(each) }));
  return html`<div><h3>${title} <small>|b − a| / |a|</small></h3>
    ${bars.length ? html`<${Bars} bars=${bars} name=${title} say=${(/** @type {number} */ value) => number(value, 3)} />` : html`<p class="note">no two of the same shape</p>`}</div>`;
}

/** Each head with the head of the other run whose pattern is most similar. @param {{model: any, selection: any}} props */
function Heads({ model, selection }) {
  const heads = useMemo(() => model.beside("matched"), [model]);
  const found = useTrait(heads, "found");
  const error = useTrait(heads, "error");
  const answer = useTrait(heads, "answer");
  heads.set("selection", selection);
  useEffect(() => heads.ask(selection), [keyOf(selection, USES)]);
  return html`<section class="matched-heads" aria-label="matched heads"><h3>Most similar heads <span class="taking"><${Taking} id="matched" model=${heads} answer=${answer} /></span></h3>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${found && !error && html`<${Matched} model=${model} found=${found} />`}</section>`;
}

/** @param {{model: any, found: any}} props */
function Matched({ model, found }) {
  const values = useMemo(() => ({ data: Float64Array.from(found.similarities.flat(), (/** @type {number | null} */ each) => each ?? NaN), shape: [found.heads.length, found.others.length] }), [found]);
  const [chosen, setChosen] = useState(/** @type {[number, number]} */ ([0, 0]));
  const open = (/** @type {string} */ name) => {
    const [, layer, part, head] = /** @type {RegExpMatchArray} */ (name.match(HEAD));
    select(model, { layer: Number(layer), head: Number(head), part: name.startsWith("encoder_") ? "encoder" : part });
  };
  const rows = useMemo(() => found.heads.map(short), [found]);
  const columns = useMemo(() => found.others.map(short), [found]);
  return html`<div class="matched">
    <${HeatMap} values=${values} name="similarity of every pair of heads" signed limits=${[-1, 1]} cell=${22} rows=${rows} columns=${columns}
      say=${(/** @type {number} */ r, /** @type {number} */ c) => `${rows[r]} and the second run's ${columns[c]}`} chosen=${chosen} onChoose=${(/** @type {number} */ r, /** @type {number} */ c) => setChosen([r, c])} onOpen=${(/** @type {number} */ r) => open(found.heads[r])} />
    <div class="wide" tabindex="0" role="region" aria-label="matched heads"><table class="ranks"><thead><tr><th scope="col">head</th><th scope="col">head of the second run</th><th scope="col" class="is-number">similarity</th></tr></thead>
      <tbody>${found.matches.map((/** @type {any} */ each) => html`<tr key=${each.head}><td><button type="button" onClick=${() => open(each.head)}>${short(each.head)}</button></td><td>${short(each.other)}</td><td class="is-number">${number(each.similarity, 3)}</td></tr>`)}</tbody></table></div>
  </div>`;
}

/** @param {string} name */
function short(name) {
  return name.replace("coder_blocks.", "c ").replace("blocks.", "").replace(".attn:", " head ").replace(".cross_attn:", " cross ");
}

/** @param {Distance} distance */
function relative({ norm, change }) {
  return norm ? change / norm : 0;
}

export default view(Comparison);
