// The windows of the training data that speak for a prediction, and those that speak against it; computed on request.
import { html, isFixed, select, useTrait, view } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { number, signed, thousands, visible } from "../core/words.js";
import { NumberField } from "../parts/fields.js";

const PLACES = "read from"; // starts a note on places, omitted because each window shows its own
const SHOWN = 8;
const USES = /** @type {const} */ (["run", "checkpoint", "text", "output", "masked", "position", "target", "sample"]);

/** @param {{model: any, found: any, selection: any}} props */
function LearnedFrom({ model, found, selection }) {
  const busy = useTrait(model, "busy");
  const answer = useTrait(model, "answer");
  const asked = useTrait(model, "asked");
  const isStale = !asked || keyOf(asked, [...USES]) !== keyOf(selection, [...USES]);
  return html`<div class="learned">
    <fieldset class="settings" disabled=${isFixed(model, "sample")} aria-label="windows to score">
      <${NumberField} label="Windows to score" name="sample" value=${selection.sample} low=${1} high=${4096} onChange=${(/** @type {number} */ sample) => select(model, { sample })} />
      <button type="button" class="is-main" disabled=${busy} onClick=${() => model.ask(selection)}>Score ${thousands(selection.sample)} training windows</button>
      <span class="note">one backward pass each at every kept checkpoint: this takes a while</span>
    </fieldset>
    ${found && html`<${Found} model=${model} found=${found} isStale=${isStale} notes=${answer.notes} />`}
  </div>`;
}

/** @param {{model: any, found: any, isStale: boolean, notes: string[]}} props */
function Found({ model, found, isStale, notes }) {
  const pro = found.windows.slice(0, SHOWN).filter((/** @type {any} */ each) => each.score > 0);
  const against = found.windows.slice(-SHOWN).filter((/** @type {any} */ each) => each.score < 0).reverse();
  const most = Math.max(...[...pro, ...against].map((each) => Math.abs(each.score)), Number.MIN_VALUE);
  return html`<div class=${isStale ? "is-stale" : ""}>
    ${isStale && html`<p class="note">of another prediction; score again for the selected one</p>`}
    <p class="sum">the prediction of <code>${visible(found.target)}</code> at position ${found.position}, loss <b>${number(found.loss)}</b> nats: ${thousands(found.windows.length)} of ${thousands(found.n_windows)} windows scored, at ${found.checkpoints.length === 1 ? `step ${found.checkpoints[0]}` : `steps ${found.checkpoints.join(", ")}`}</p>
    <div class="two-lists">
      <${Windows} title="For it" windows=${pro} most=${most} model=${model} family=${found.family} />
      <${Windows} title="Against it" windows=${against} most=${most} model=${model} family=${found.family} />
    </div>
    <p class="note">a score is how much one more step on the window would reduce the prediction's loss, in nats; click a window to read it in all views</p>
    ${notes.filter((/** @type {string} */ note) => !note.startsWith(PLACES)).map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}
  </div>`;
}

/** @param {{title: string, windows: any[], most: number, model: any, family: string}} props */
function Windows({ title, windows, most, model, family }) {
  return html`<section><h3>${title}${windows.length ? "" : ": none"}</h3><ol class="passages">
    ${windows.map((each) => html`<li key=${each.id}><button type="button" title="read this window in all views" onClick=${() => read(model, each.text, family)}>
      <span class="passage-head"><b>${signed(each.score)}</b><span class="bar-track"><i class=${each.score < 0 ? "is-negative" : "is-positive"} style=${{ left: 0, width: `${(100 * Math.abs(each.score)) / most}%` }}></i></span><small>${seen(each)}</small></span>
      <span class="passage-text">${visible(each.text).replaceAll("\n", "⏎")}</span>
      <small>${each.spans.map((/** @type {any} */ span) => `${span.file}, bytes ${thousands(span.start)} to ${thousands(span.stop)}`).join("; ")}</small></button></li>`)}
  </ol></section>`;
}

/** @param {any} window */
function seen(window) {
  const steps = window.seen.map((/** @type {number[]} */ [step]) => step);
  return `seen in step ${steps.slice(0, 3).join(", ")}${steps.length > 3 ? ` and ${steps.length - 3} more` : ""}`;
}

/** Select a window in all views; of a pair, both sides. @param {any} model @param {string} window @param {string} family */
function read(model, window, family) {
  const [text, output] = family === "encoder-decoder" ? window.split("\t") : [window, null]; // any other text may hold tabs
  select(model, { text, output, masked: [], position: -1, key: 0, target: null, foil: null, drawn: [] });
}

export default view(LearnedFrom, { hasControls: true, byHand: true });
