// The lens bar: what is looked at. All views follow it.
import { html, useEffect, useState } from "../core/html.js";
import { NumberField, TextField } from "./fields.js";

/**
 * @param {object} props
 * @param {any[]} props.runs
 * @param {import("../core/selection.js").Selection} props.selection
 * @param {(fields: Partial<import("../core/selection.js").Selection>) => void} props.onSelect
 */
export function LensBar({ runs, selection, onSelect }) {
  const run = runs.find((each) => each.name === selection.run) ?? runs[0];
  const pair = run.family === "encoder-decoder";
  return html`<form class="lens-bar" aria-label="what is looked at" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <${TextField} label=${pair ? "Source" : "Text"} lines=${2} name="text" value=${selection.text} onChange=${(/** @type {string} */ text) => onSelect({ text, position: -1 })} />
    ${pair && html`<${TextField} label="Written (its own translation, where empty)" lines=${2} name="output" value=${selection.output ?? ""} onChange=${(/** @type {string} */ output) => onSelect({ output: output || null, position: -1 })} />`}
    <div class="fields">
      ${runs.length > 1 && html`<label>Run<select value=${selection.run} onChange=${(/** @type {any} */ event) => onSelect({ run: event.target.value })}>${runs.map((each) => html`<option key=${each.name}>${each.name}</option>`)}</select></label>`}
      ${run.steps.length > 1 && html`<${Checkpoints} run=${run} selection=${selection} onSelect=${onSelect} />`}
      <${NumberField} label="Position" name="position" value=${selection.position} low=${-run.context} high=${run.context - 1} onChange=${(/** @type {number} */ position) => onSelect({ position })} />
      <${NumberField} label="Layer" name="layer" value=${selection.layer} low=${0} high=${run.layers - 1} onChange=${(/** @type {number} */ layer) => onSelect({ layer })} />
      <${NumberField} label="Head" name="head" value=${selection.head} low=${0} high=${run.heads - 1} onChange=${(/** @type {number} */ head) => onSelect({ head })} />
      <${TextField} label="Target" name="target" value=${selection.target ?? ""} placeholder="likeliest" onChange=${(/** @type {string} */ target) => onSelect({ target: target || null })} />
      <${TextField} label="Foil" name="foil" value=${selection.foil ?? ""} placeholder="none" onChange=${(/** @type {string} */ foil) => onSelect({ foil: foil || null })} />
      <${NumberField} label="Seed" name="seed" value=${selection.seed} low=${0} high=${2 ** 31 - 1} onChange=${(/** @type {number} */ seed) => onSelect({ seed })} />
    </div>
  </form>`;
}

/** @param {{run: any, selection: any, onSelect: (fields: any) => void}} props */
function Checkpoints({ run, selection, onSelect }) {
  const steps = run.steps;
  const step = selection.checkpoint === "latest" ? run.step : Number(selection.checkpoint);
  const at = Math.max(0, steps.findLastIndex((/** @type {number} */ each) => each <= step));
  const [seen, setSeen] = useState(at);
  useEffect(() => setSeen(at), [at]);
  return html`<label>Checkpoint <output>step ${steps[seen]}</output>
    <input type="range" name="checkpoint" min="0" max=${steps.length - 1} value=${seen} aria-valuetext=${`step ${steps[seen]}`}
      onInput=${(/** @type {any} */ event) => setSeen(Number(event.target.value))}
      onChange=${(/** @type {any} */ event) => onSelect({ checkpoint: String(steps[Number(event.target.value)]) })} />
  </label>`;
}
