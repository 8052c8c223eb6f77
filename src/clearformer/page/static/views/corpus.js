// The loss of every token in a part of the run's data, and its hardest and easiest passages; a click selects a prediction.
import { html, isFixed, select, useEffect, useRef, useState, useTrait, view } from "../core/html.js";
import { number, thousands, visible } from "../core/words.js";
import { NumberField } from "../parts/fields.js";
import { HeatMap } from "../parts/heatmap.js";

const PLACES = "read from"; // starts a note on places, omitted because each passage shows its own
const CELL = 10;
const MOST_WIDE = 16;
const NAMES_WIDE = 48; // width of the row numbers in pixels
const AROUND = 24; // tokens of context on each side of a passage
const IN_A_LINE = 24; // texts per line, if each has only one loss

/** @param {{model: any, found: any, selection: any}} props */
function Corpus({ model, found, selection }) {
  const answer = useTrait(model, "answer");
  return html`<div class="corpus">
    <${Controls} model=${model} found=${found} selection=${selection} />
    ${found && html`<p class="sum">mean loss <b>${number(found.mean)}</b> nats over ${thousands(counted(found))} predictions; ${found.unit}s ${thousands(found.first)} to ${thousands(found.first + found.rows.length - 1)} of ${thousands(found.n_rows)}</p>
      <${LossMap} key=${`${found.split} ${found.first}`} model=${model} found=${found} />
      <div class="two-lists">
        <${Passages} title="Hardest" passages=${found.hardest} found=${found} model=${model} />
        <${Passages} title="Easiest" passages=${found.easiest} found=${found} model=${model} />
      </div>
      ${answer.notes.filter((/** @type {string} */ note) => !note.startsWith(PLACES)).map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}`}
  </div>`;
}

/** @param {{model: any, found: any, selection: any}} props */
function Controls({ model, found, selection }) {
  const set = (/** @type {string} */ name) => (/** @type {any} */ value) => select(model, { [name]: value });
  const { first_row: first, n_rows: n } = selection;
  const last = found ? found.n_rows : Infinity;
  const names = /** @type {Record<string, string>} */ ({ val: "held-out", train: "training", test: "test" });
  return html`<fieldset class="settings" disabled=${isFixed(model, "split")} aria-label="data to read">
    <label>Split<select name="split" value=${selection.split} onChange=${(/** @type {any} */ event) => select(model, { split: event.target.value, first_row: 0 })}>
      ${(found?.splits ?? ["train", "val"]).map((/** @type {string} */ split) => html`<option key=${split} value=${split}>${names[split] ?? split}</option>`)}</select></label>
    <${NumberField} label=${`First ${found?.unit ?? "row"}`} name="first_row" value=${first} low=${0} high=${1e9} onChange=${set("first_row")} />
    <${NumberField} label=${`${capital(found?.unit ?? "row")}s read`} name="n_rows" value=${n} low=${1} high=${512} onChange=${set("n_rows")} />
    <div class="actions"><button type="button" disabled=${first === 0} onClick=${() => select(model, { first_row: Math.max(0, first - n) })}>Earlier</button>
      <button type="button" disabled=${first + n >= last} onClick=${() => select(model, { first_row: first + n })}>Later</button></div>
  </fieldset>`;
}

/** Every loss as a colour. @param {{model: any, found: any}} props */
function LossMap({ model, found }) {
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const [room, setRoom] = useState(0);
  const [chosen, setChosen] = useState(/** @type {[number, number]} */ ([0, 0]));
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (place.current);
    const sizes = new ResizeObserver(() => setRoom(element.clientWidth));
    sizes.observe(element);
    setRoom(element.clientWidth);
    return () => sizes.disconnect();
  }, []);
  const shape = shapeOf(found);
  const placeAt = (/** @type {number} */ r, /** @type {number} */ c) => placeIn(found, shape, r, c);
  const look = (/** @type {number} */ r, /** @type {number} */ c) => {
    setChosen([r, c]);
    const at = placeAt(r, c);
    if (at) lookAt(model, found, ...at);
  };
  const say = (/** @type {number} */ r, /** @type {number} */ c) => {
    const at = placeAt(r, c);
    return at ? wordsOf(found, ...at) : "nothing here";
  };
  const wide = Math.max(1, Math.min(MOST_WIDE, Math.floor((room - NAMES_WIDE) / shape.columns)));
  return html`<div class="corpus-map" ref=${place}>
    ${room > 0 && html`<${HeatMap} values=${{ data: shape.data, shape: [shape.rows, shape.columns] }} name=${`loss of every token, ${found.unit} by ${found.unit}`} rows=${shape.names} limits=${[0, found.uniform_loss]}
      cell=${CELL} wide=${wide} chosen=${chosen} onChoose=${(/** @type {number} */ r, /** @type {number} */ c) => setChosen([r, c])} onClick=${look} onOpen=${look} say=${say} />`}
    <p class="legend"><i class="amounts"></i> 0 to ${number(found.uniform_loss, 2)} nats, the loss when all tokens are equally likely; click a token or press Enter to select its prediction in all views</p>
    <${Chosen} found=${found} at=${placeAt(...chosen)} />
  </div>`;
}

/** The chosen token within its row. @param {{found: any, at: [number, number] | null}} props */
function Chosen({ found, at }) {
  if (!at) return null;
  const [row, column] = at;
  const isOne = found.losses.shape[1] === 1;
  const { read_alike: alike, spans, text } = found.rows[row];
  const before = isOne ? `${visible(text).slice(0, 160)} ` : said(found, row, column - 24, column);
  const token = said(found, row, column, column + 1);
  const gap = isWords(found) && token.startsWith(" ") ? " " : "";
  return html`<p class="so-far">${before}${gap}<mark>${token.slice(gap.length)}</mark>${isOne ? "" : said(found, row, column + 1, column + 17)}</p>
    <p class="note">${placesOf(spans)}${alike ? "" : "; read alone, this row begins or ends with different tokens, so the views show slightly different numbers"}</p>`;
}

/** @param {{title: string, passages: any[], found: any, model: any}} props */
function Passages({ title, passages, found, model }) {
  const most = Math.max(found.uniform_loss, found.hardest[0]?.loss ?? 1);
  return html`<section><h3>${title}</h3><ol class="passages">
    ${passages.map((each) => html`<li key=${`${each.row} ${each.column}`}><button type="button" title="select its hardest prediction in all views" onClick=${() => lookAt(model, found, each.row, worstIn(found, each))}>
      <span class="passage-head"><b>${number(each.loss)}</b><span class="bar-track"><i class="is-loss" style=${{ left: 0, width: `${(100 * each.loss) / most}%` }}></i></span></span>
      <${PassageText} found=${found} passage=${each} />
      <small>${placesOf(each.spans)}</small></button></li>`)}
  </ol></section>`;
}

/** The text of a passage; in running text, with its context in the row. @param {{found: any, passage: any}} props */
function PassageText({ found, passage: { row, column, n, text } }) {
  if (found.unit !== "row") return html`<span class="passage-text">${visible(text).replaceAll("\n", "⏎").replaceAll("\t", " → ")}</span>`;
  return html`<span class="passage-text"><span>${said(found, row, column - AROUND, column)}</span>${said(found, row, column, column + n)}<span>${said(found, row, column + n, column + n + AROUND)}</span></span>`;
}

/** Places in files, as text. @param {any[]} spans */
function placesOf(spans) {
  return spans.map((span) => `${span.file}, bytes ${thousands(span.start)} to ${thousands(span.stop)}`).join("; ");
}

/** The text of a row's tokens from one column to another, as far as they exist. @param {any} found @param {number} row @param {number} from @param {number} to */
function said(found, row, from, to) {
  const width = found.losses.shape[1];
  const space = isWords(found) ? " " : "";
  const ids = [...found.ids.data.subarray(row * width + Math.max(0, from), row * width + Math.min(width, to))].filter((id) => id >= 0);
  return ids.map((id) => `${space}${visible(found.labels[id])}`).join("").replaceAll(" ##", "");
}

/** The layout of the losses: row by row, or if each text has only one, several texts per line. @param {any} found */
function shapeOf(found) {
  const [rows, columns] = found.losses.shape;
  if (columns > 1) return { data: found.losses.data, rows, columns, names: found.rows.map((/** @type {any} */ row) => String(row.number)), inLines: false };
  const lines = Math.ceil(rows / IN_A_LINE);
  const data = new Float64Array(lines * IN_A_LINE).fill(NaN);
  data.set(found.losses.data);
  return { data, rows: lines, columns: IN_A_LINE, names: Array.from({ length: lines }, (_, i) => String(found.first + i * IN_A_LINE)), inLines: true };
}

/** The row and column of the data under a cell; null if the cell is empty. @param {any} found @param {any} shape @param {number} r @param {number} c @returns {[number, number] | null} */
function placeIn(found, shape, r, c) {
  const [row, column] = shape.inLines ? [r * IN_A_LINE + c, 0] : [r, c];
  const width = found.losses.shape[1];
  return row < found.rows.length && found.ids.data[row * width + column] >= 0 ? [row, column] : null;
}

/** @param {any} found @param {number} row @param {number} column */
function wordsOf(found, row, column) {
  const at = row * found.losses.shape[1] + column;
  return `${found.unit} ${found.rows[row].number}, ${visible(found.labels[found.ids.data[at]])}, likeliest ${visible(found.labels[found.likeliest.data[at]])}, loss`;
}

/** Select the prediction of a token in all views. @param {any} model @param {any} found @param {number} row @param {number} column */
function lookAt(model, found, row, column) {
  const { text, output, position, masked_every: every } = found.rows[row];
  const width = found.losses.shape[1];
  const target = found.labels[found.ids.data[row * width + column]];
  const masked = every ? maskedWith(found, row, column) : [];
  select(model, { text, output, masked, position: position + column, key: 0, target, foil: null, drawn: [] });
}

/** The positions that are masked together with a given one. @param {any} found @param {number} row @param {number} column */
function maskedWith(found, row, column) {
  const { position, masked_every: every, special } = found.rows[row];
  const width = found.losses.shape[1];
  const columns = Array.from({ length: width }, (_, c) => c).filter((c) => c % every === column % every && found.ids.data[row * width + c] >= 0 && !special.includes(c));
  return columns.map((c) => position + c);
}

/** The column of a passage's hardest token. @param {any} found @param {any} passage */
function worstIn(found, { row, column, n }) {
  const width = found.losses.shape[1];
  const of = (/** @type {number} */ c) => found.losses.data[row * width + c] || 0;
  return Array.from({ length: n }, (_, i) => column + i).reduce((worst, c) => (of(c) > of(worst) ? c : worst), column);
}

/** Whether tokens are words without a space before them, like an encoder's. @param {any} found */
function isWords(found) {
  return found.rows.some((/** @type {any} */ row) => row.masked_every > 0);
}

/** @param {string} word */
function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

/** @param {any} found */
function counted(found) {
  return found.losses.data.reduce((/** @type {number} */ n, /** @type {number} */ loss) => n + (Number.isFinite(loss) ? 1 : 0), 0);
}

export default view(Corpus, { hasControls: true });
