// Every head small, one of them large: the query (row) reads the key (column).
import { html, select, view } from "../core/html.js";
import { matrixOf } from "../core/wire.js";
import { number, visible } from "../core/words.js";
import { HeatMap, Thumbnail } from "../parts/heatmap.js";
import { fromStart } from "../parts/strip.js";

const PARTS = /(encoder_|decoder_)?blocks\.(\d+)\.(attn|cross_attn)\./;
const MOST_ARCS = 12;

/** @param {{model: any, found: any, selection: any}} props */
function Attention({ model, found, selection }) {
  const names = Object.keys(found.patterns);
  const name = nearest(names, selection);
  const [, stack = "", layer, part] = /** @type {RegExpMatchArray} */ (name.match(PARTS));
  const head = Math.min(selection.head, found.heads.length - 1);
  const values = matrixOf(found.patterns[name], head);
  const rows = stack === "encoder_" ? found.source : found.tokens;
  const columns = stack === "encoder_" || part === "cross_attn" ? found.source : found.tokens;
  const row = fromStart(selection.position, rows.length);
  const say = (/** @type {number} */ r, /** @type {number} */ c) => `query ${r} ${visible(rows[r])} reads key ${c} ${visible(columns[c])}`;
  const choose = (/** @type {number} */ position, /** @type {number} */ key) => select(model, { position, key });
  return html`<div class="attention">
    <div class="wall" role="group" aria-label="all heads">
      ${names.map((each) => html`<div class="wall-row" key=${each}><span>${short(each)}</span>
        ${found.heads.map((/** @type {number} */ h, /** @type {number} */ i) => html`<button key=${h} type="button" aria-pressed=${each === name && i === head} aria-label=${`${short(each)}, head ${h}`}
          onClick=${() => select(model, { ...chosen(each), head: h })}><${Thumbnail} values=${matrixOf(found.patterns[each], i)} size=${56} /></button>`)}
      </div>`)}
    </div>
    <div class="one-head">
      <h3>layer ${layer}, head ${head}${part === "cross_attn" ? ", of the source" : stack === "encoder_" ? ", encoder" : ""}</h3>
      <${HeatMap} values=${values} name=${`pattern of ${short(name)}, head ${head}`} rows=${rows.map(visible)} columns=${columns.map(visible)} limits=${[0, 1]}
        chosen=${[row, Math.min(selection.key, columns.length - 1)]} onChoose=${choose} say=${say} />
      <${Read} values=${values} row=${row} rows=${rows} columns=${columns} />
    </div>
  </div>`;
}

/** What one query reads, most first. @param {{values: any, row: number, rows: string[], columns: string[]}} props */
function Read({ values, row, rows, columns }) {
  const width = values.shape[1];
  const weights = [...values.data.subarray(row * width, (row + 1) * width)];
  const order = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_ARCS).filter((i) => weights[i] >= 0.005);
  return html`<div class="reads"><p><code>${visible(rows[row])}</code> at ${row} reads</p>
    <ul>${order.map((i) => html`<li key=${i}><i style=${{ width: `${100 * weights[i]}%` }}></i><code>${visible(columns[i])}</code><small>${i}</small><b>${number(weights[i], 3)}</b></li>`)}</ul>
  </div>`;
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

/** The pattern that is selected, or the first. @param {string[]} names @param {any} selection */
function nearest(names, selection) {
  return names.find((name) => chosen(name).layer === selection.layer && chosen(name).part === selection.part) ?? names.find((name) => chosen(name).layer === selection.layer) ?? names[0];
}

export default view(Attention);
