// Attention: every head small, one of them large; the query (row) reads the key (column).
import { html, select, useEffect, useMemo, useTrait, view } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { matrixOf } from "../core/wire.js";
import { isolated, number, signed, visible } from "../core/words.js";
import { Arcs } from "../parts/arcs.js";
import { goTo } from "../parts/going.js";
import { HeatMap, Thumbnail } from "../parts/heatmap.js";
import { fromStart } from "../parts/strip.js";

const PARTS = /(encoder_|decoder_)?blocks\.(\d+)\.(attn|cross_attn)\./;
const MOST_ARCS = 12;
const LEAST = 0.005; // the least weight that is listed
const USES = ["run", "checkpoint", "versus", "versus_checkpoint", "text", "output", "masked", "layer", "head", "part"];
const PLACE = ["position", "key"];

/** @param {{model: any, found: any, both: any, selection: any}} props */
function Attention({ model, found, both, selection }) {
  const names = Object.keys(found.patterns);
  const name = nearest(names, selection);
  const head = fromStart(selection.head, found.heads.length);
  const small = useMemo(() => Object.fromEntries(names.map((each) => [each, found.heads.map((/** @type {number} */ _, /** @type {number} */ i) => matrixOf(found.patterns[each], i))])), [found]);
  const limits = useMemo(() => (both ? around(Object.values(found.patterns)) : undefined), [found]);
  const of = chosen(name);
  const n = (of.part === "encoder" ? found.source : found.tokens).length; // the position may be one of the other text
  const position = Math.min(selection.position, n - 1);
  return html`<div class="attention">
    <div class="wall" role="group" aria-label="all heads">
      ${names.map((each) => html`<div class="wall-row" key=${each}><span>${short(each)}</span>
        ${found.heads.map((/** @type {number} */ h, /** @type {number} */ i) => html`<button key=${h} type="button" aria-pressed=${each === name && i === head} aria-label=${`${short(each)}, head ${h}`}
          onClick=${() => select(model, { ...chosen(each), head: h })}><${Thumbnail} values=${small[each][i]} size=${56} limits=${limits} signed=${Boolean(both)} /></button>`)}
      </div>`)}
    </div>
    <${OneHead} model=${model} selection=${{ ...selection, ...of, head, position }} overview=${{ found, name, values: small[name][head] }} />
  </div>`;
}

/**
 * The weights of one head, requested separately; for a long text, only those around the query and the key.
 * @param {{model: any, selection: any, overview: {found: any, name: string, values: import("../core/wire.js").NDArray}}} props
 */
function OneHead({ model, selection, overview }) {
  const pattern = useMemo(() => model.beside("pattern"), [model]);
  const found = useTrait(pattern, "found");
  const both = pattern.get("both");
  const error = useTrait(pattern, "error");
  const busy = useTrait(pattern, "busy");
  const { layer, head, part } = selection;
  const others = found && !isWhole(found) ? PLACE : [];
  useEffect(() => pattern.ask(selection), [keyOf(selection, [...USES, ...others])]);
  const title = `layer ${layer}, head ${head}${part === "cross_attn" ? ", of the source" : part === "encoder" ? ", encoder" : ""}`;
  return html`<div class=${busy ? "one-head is-busy" : "one-head"}>
    <h3>${title}</h3>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${found && html`<${Near} model=${model} found=${found} both=${both} selection=${selection} />
      <div class="beside-head">
        ${!isWhole(found) && html`<${Far} model=${model} found=${found} both=${both} overview=${overview} />`}
        <${Read} found=${found} both=${both} selection=${selection} />
        ${model.source.hasOthers && html`<p><button type="button" onClick=${() => goTo("score")}>Why does it read this key?</button> <span class="note">opens the score ledger, as Enter or a double click does</span></p>`}
      </div>
      ${!both && html`<${Over} found=${found} selection=${selection} />`}`}
  </div>`;
}

/** The whole pattern of a long text, scaled down; a click selects a place. @param {{model: any, found: any, both: any, overview: any}} props */
function Far({ model, found, both, overview }) {
  const [rowStep, columnStep] = overview.found.steps[overview.name];
  const [n, m] = [found.tokens.length, found.read.length];
  const until = (/** @type {number} */ first, /** @type {number} */ step, /** @type {number} */ size) => `${first} to ${Math.min(size, first + step) - 1}`;
  const say = (/** @type {number} */ r, /** @type {number} */ c) => `queries ${until(r * rowStep, rowStep, n)} read keys ${until(c * columnStep, columnStep, m)}, largest weight`;
  const go = (/** @type {number} */ r, /** @type {number} */ c) =>
    select(model, { position: Math.min(n - 1, r * rowStep + (rowStep >> 1)), key: Math.min(m - 1, c * columnStep + (columnStep >> 1)) });
  return html`<div><p class="note">the whole pattern, ${n} × ${m}, reduced: choose a place to see its weights</p>
    <${HeatMap} values=${overview.values} name="the whole pattern, reduced" signed=${Boolean(both)} cell=${4} chosen=${[Math.floor(found.position / rowStep), Math.floor(found.key / columnStep)]} onChoose=${go} say=${say} /></div>`;
}

/** The weights themselves. @param {{model: any, found: any, both: any, selection: any}} props */
function Near({ model, found, both, selection }) {
  const { tokens, read, first_row: top, first_column: left, weights } = found;
  const [n, m] = weights.shape;
  const rows = useMemo(() => tokens.slice(top, top + n).map(visible), [found]);
  const columns = useMemo(() => read.slice(left, left + m).map(visible), [found]);
  const at = queryOf(found, selection);
  const key = isWhole(found) ? fromStart(selection.key, read.length) : found.key;
  const say = (/** @type {number} */ r, /** @type {number} */ c) => `query ${top + r} ${isolated(rows[r])} reads key ${left + c} ${isolated(columns[c])}`;
  return html`<div><${HeatMap} values=${weights} name=${`pattern of ${short(found.name)}, head ${found.head}`} rows=${rows} columns=${columns} signed=${Boolean(both)} limits=${isWhole(found) && !both ? [0, 1] : undefined}
      chosen=${[at - top, key - left]} onChoose=${(/** @type {number} */ r, /** @type {number} */ c) => select(model, { position: top + r, key: left + c })} onOpen=${model.source.hasOthers ? () => goTo("score") : undefined} say=${say} />
    ${!isWhole(found) && html`<p class="note">queries ${top} to ${top + n - 1} of ${tokens.length}, keys ${left} to ${left + m - 1} of ${read.length}; ${both ? "the strongest colours are the largest change shown" : "the lightest colour is the largest weight shown"}</p>`}</div>`;
}

/** The query to show: the selected one if all weights are here, else the one that the answer is for. @param {any} found @param {any} selection */
function queryOf(found, selection) {
  return isWhole(found) ? fromStart(selection.position, found.tokens.length) : found.position;
}

/** Whether an answer has all weights of its head. @param {any} found */
function isWhole({ weights, tokens, read }) {
  return weights.shape[0] === tokens.length && weights.shape[1] === read.length;
}

/** The query's weights as curves. @param {{found: any, selection: any}} props */
function Over({ found, selection }) {
  const { row, weights, order } = mostRead(found, selection);
  return html`<${Arcs} tokens=${found.tokens} read=${found.read} query=${row} keys=${order} weights=${weights} across=${found.part === "cross_attn"} />`;
}

/** A list of the keys that one query reads, largest weight first. @param {{found: any, both: any, selection: any}} props */
function Read({ found, both, selection }) {
  const { tokens: rows, read: columns } = found;
  const { row, weights, order } = mostRead(found, selection);
  return html`<div class="reads"><p><code>${visible(rows[row])}</code> at ${row} reads${both ? ", more or less than in the first" : ""}</p>
    ${order.length === 0 && html`<p class="note">no ${both ? "change" : "weight"} of ${LEAST} or more</p>`}
    <ul>${order.map((i) => html`<li key=${i}><i class=${both ? (weights[i] < 0 ? "is-negative" : "is-positive") : ""} style=${{ width: `${100 * Math.abs(weights[i])}%` }}></i><code>${visible(columns[i])}</code><small>${i}</small><b>${both ? signed(weights[i], 3) : number(weights[i], 3)}</b></li>`)}</ul>
  </div>`;
}

/** The weights of the query, and the positions of the largest. @param {any} found @param {any} selection */
function mostRead(found, selection) {
  const [row, n] = [queryOf(found, selection), found.read.length];
  /** @type {number[]} */
  const weights = [...(isWhole(found) ? found.weights.data.subarray(row * n, (row + 1) * n) : found.reads.data)];
  const order = weights.map((_, i) => i).sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, MOST_ARCS).filter((i) => Math.abs(weights[i]) >= LEAST);
  return { row, weights, order };
}

/** Limits of colours, symmetric around zero, by the largest number of some arrays. @param {import("../core/wire.js").NDArray[]} arrays @returns {[number, number]} */
function around(arrays) {
  const largest = arrays.reduce((most, { data }) => [...data].reduce((size, each) => Math.max(size, Math.abs(each)), most), 1e-9);
  return [-largest, largest];
}

/** @param {string} name */
function short(name) {
  const [, stack = "", layer, part] = /** @type {RegExpMatchArray} */ (name.match(PARTS));
  return `${stack ? `${stack.replace("coder_", "c")} ` : ""}${layer}${part === "cross_attn" ? " cross" : ""}`;
}

/** @param {string} name */
function chosen(name) {
  const [, stack = "", layer, part] = /** @type {RegExpMatchArray} */ (name.match(PARTS));
  return { layer: Number(layer), part: stack === "encoder_" ? "encoder" : part };
}

/** The selected pattern, or the nearest of that part; of a part without patterns, of any. @param {string[]} names @param {any} selection */
function nearest(names, selection) {
  const ofPart = names.filter((name) => chosen(name).part === selection.part);
  const some = ofPart.length ? ofPart : names;
  const layer = fromStart(selection.layer, 1 + Math.max(...some.map((name) => chosen(name).layer)));
  return some.find((name) => chosen(name).layer === layer) ?? some[0];
}

export default view(Attention);
