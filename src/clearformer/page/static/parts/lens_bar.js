// The lens bar: what is looked at. All views follow it.
import { html, useEffect, useState } from "../core/html.js";

const PAUSE = 350; // milliseconds without a key, after which a text is read

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
    <label class="is-wide">${pair ? "Source" : "Text"}<${Later} area name="text" value=${selection.text} onChange=${(/** @type {string} */ text) => onSelect({ text, position: -1 })} /></label>
    ${pair && html`<label class="is-wide">Written (its own translation, where empty)<${Later} area name="output" value=${selection.output ?? ""} onChange=${(/** @type {string} */ output) => onSelect({ output: output || null, position: -1 })} /></label>`}
    <div class="fields">
      ${runs.length > 1 && html`<label>Run<select value=${selection.run} onChange=${(/** @type {any} */ event) => onSelect({ run: event.target.value })}>${runs.map((each) => html`<option key=${each.name}>${each.name}</option>`)}</select></label>`}
      ${run.steps.length > 1 && html`<${Checkpoints} run=${run} selection=${selection} onSelect=${onSelect} />`}
      <label>Position<${Number_} name="position" value=${selection.position} low=${-run.context} high=${run.context - 1} onChange=${(/** @type {number} */ position) => onSelect({ position })} /></label>
      <label>Layer<${Number_} name="layer" value=${selection.layer} low=${0} high=${run.layers - 1} onChange=${(/** @type {number} */ layer) => onSelect({ layer })} /></label>
      <label>Head<${Number_} name="head" value=${selection.head} low=${0} high=${run.heads - 1} onChange=${(/** @type {number} */ head) => onSelect({ head })} /></label>
      <label>Target<${Later} name="target" value=${selection.target ?? ""} placeholder="likeliest" onChange=${(/** @type {string} */ target) => onSelect({ target: target || null })} /></label>
      <label>Foil<${Later} name="foil" value=${selection.foil ?? ""} placeholder="none" onChange=${(/** @type {string} */ foil) => onSelect({ foil: foil || null })} /></label>
      <label>Seed<${Number_} name="seed" value=${selection.seed} low=${0} high=${2 ** 31 - 1} onChange=${(/** @type {number} */ seed) => onSelect({ seed })} /></label>
    </div>
  </form>`;
}

/** @param {{run: any, selection: any, onSelect: (fields: any) => void}} props */
function Checkpoints({ run, selection, onSelect }) {
  const steps = run.steps;
  const at = selection.checkpoint === "latest" ? steps.length - 1 : Math.max(0, steps.indexOf(Number(selection.checkpoint)));
  const [seen, setSeen] = useState(at);
  useEffect(() => setSeen(at), [at]);
  return html`<label>Checkpoint <output>step ${steps[seen]}</output>
    <input type="range" name="checkpoint" min="0" max=${steps.length - 1} value=${seen} aria-valuetext=${`step ${steps[seen]}`}
      onInput=${(/** @type {any} */ event) => setSeen(Number(event.target.value))}
      onChange=${(/** @type {any} */ event) => onSelect({ checkpoint: String(steps[Number(event.target.value)]) })} />
  </label>`;
}

/** A field that is read once nobody has typed for a moment. @param {any} props */
function Later({ name, value, onChange, area = false, placeholder = "" }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => onChange(text), PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  const onInput = (/** @type {any} */ event) => setText(event.target.value);
  return area
    ? html`<textarea name=${name} rows="2" spellcheck="false" value=${text} onInput=${onInput}></textarea>`
    : html`<input name=${name} type="text" spellcheck="false" autocomplete="off" placeholder=${placeholder} value=${text} onInput=${onInput} />`;
}

/** @param {any} props */
function Number_({ name, value, low, high, step = 1, onChange }) {
  const change = (/** @type {any} */ event) => {
    const wanted = Number(event.target.value);
    if (event.target.value !== "" && wanted >= low && wanted <= high) onChange(wanted);
  };
  return html`<input name=${name} type="number" min=${low} max=${high} step=${step} value=${value} onInput=${change} />`;
}
