// The lens bar: the controls of the selection, which all views follow.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { atHand, setReplayed, stepsOf } from "../core/live.js";
import { followProgress } from "../core/model.js";
import { useSignal } from "../core/signal.js";
import { Refused } from "../sources/source.js";
import { NumberField, TextField } from "./fields.js";

const REPLAY = "replay"; // the server's name for the computation

/**
 * @param {object} props
 * @param {any[]} props.runs
 * @param {number[]} props.steps the steps of the chosen run that can be shown
 * @param {import("../sources/source.js").Source} props.source
 * @param {import("../core/selection.js").Selection} props.selection
 * @param {(fields: Partial<import("../core/selection.js").Selection>) => void} props.onSelect
 */
export function LensBar({ runs, steps, source, selection, onSelect }) {
  const run = runs.find((each) => each.name === selection.run) ?? runs[0];
  const pair = run.family === "encoder-decoder";
  return html`<form class="lens-bar" aria-label="selection" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <${TextField} label=${pair ? "Source" : "Text"} lines=${2} name="text" value=${selection.text} onChange=${(/** @type {string} */ text) => onSelect({ text, position: -1, key: 0, masked: [], drawn: [] })} />
    ${pair && html`<${TextField} label="Output (empty: the model's own translation)" lines=${2} name="output" value=${selection.output ?? ""} onChange=${(/** @type {string} */ output) => onSelect({ output: output || null, position: -1, drawn: [] })} />`}
    <div class="fields">
      ${runs.length > 1 && html`<label>Run<select value=${selection.run} onChange=${(/** @type {any} */ event) => onSelect(turnedTo(selection, event.target.value))}>${runs.map((each) => html`<option key=${each.name}>${each.name}</option>`)}</select></label>`}
      ${(runs.length > 1 || steps.length > 1) && html`<${Beside} runs=${runs} source=${source} selection=${selection} onSelect=${onSelect} />`}
      <${NumberField} label="Position" name="position" value=${selection.position} low=${-run.context} high=${run.context - 1} onChange=${(/** @type {number} */ position) => onSelect({ position })} />
      <${NumberField} label="Layer" name="layer" value=${selection.layer} low=${0} high=${run.layers - 1} onChange=${(/** @type {number} */ layer) => onSelect({ layer })} />
      <${NumberField} label="Head" name="head" value=${selection.head} low=${0} high=${run.heads - 1} onChange=${(/** @type {number} */ head) => onSelect({ head })} />
      <${TextField} label="Target" name="target" value=${selection.target ?? ""} placeholder="likeliest" onChange=${(/** @type {string} */ target) => onSelect({ target: target || null })} />
      <${TextField} label="Foil" name="foil" value=${selection.foil ?? ""} placeholder="none" onChange=${(/** @type {string} */ foil) => onSelect({ foil: foil || null })} />
      <${NumberField} label="Seed" name="seed" value=${selection.seed} low=${0} high=${2 ** 31 - 1} onChange=${(/** @type {number} */ seed) => onSelect({ seed })} />
    </div>
    ${(steps.length > 1 || run.step > 0) && run.views.training && html`<${Checkpoints} key=${run.name} run=${run} steps=${steps} source=${source} selection=${selection} onSelect=${onSelect} />`}
  </form>`;
}

/** The fields that select another run; if it was the second run, the two swap places. @param {any} selection @param {string} name */
function turnedTo(selection, name) {
  const run = { run: name, masked: [], drawn: [] }; // places and ids of the other run's tokens
  if (!selection.versus) return run;
  return selection.versus === name
    ? { ...run, checkpoint: selection.versus_checkpoint || "latest", versus: selection.run, versus_checkpoint: selection.checkpoint === "latest" ? "" : selection.checkpoint }
    : { ...run, versus: selection.versus === selection.run ? name : selection.versus, versus_checkpoint: "" };
}

/** The choice of the second run, whose difference views show: another run, or another step of this one. @param {{runs: any[], source: import("../sources/source.js").Source, selection: any, onSelect: (fields: any) => void}} props */
function Beside({ runs, source, selection, onSelect }) {
  const other = runs.find((each) => each.name === selection.versus);
  const change = (/** @type {any} */ event) => onSelect({ versus: event.target.value, versus_checkpoint: "" });
  return html`<label>Compare with<select name="versus" value=${selection.versus} onChange=${change}>
      <option value="">none</option>
      ${runs.map((each) => html`<option key=${each.name} value=${each.name}>${each.name === selection.run ? "another checkpoint" : each.name}</option>`)}</select></label>
    ${other && html`<${BesideStep} key=${other.name} run=${other} source=${source} selection=${selection} onSelect=${onSelect} />`}`;
}

/** The choice of the second run's step. @param {{run: any, source: import("../sources/source.js").Source, selection: any, onSelect: (fields: any) => void}} props */
function BesideStep({ run, source, selection, onSelect }) {
  const steps = useSignal(stepsOf(run, source));
  const change = (/** @type {any} */ event) => onSelect({ versus_checkpoint: event.target.value });
  return html`<label>at step<select name="versus_checkpoint" value=${selection.versus_checkpoint} onChange=${change}>
    <option value="">${run.average > 1 ? `mean of ${run.average}` : "latest"}, ${run.step}</option>
    ${steps.filter((/** @type {number} */ step) => step !== run.step || run.average > 1).map((/** @type {number} */ step) => html`<option key=${step} value=${String(step)}>${step}</option>`)}</select></label>`;
}

/** The choice of the step: kept steps by the slider, any other after it is replayed. @param {{run: any, steps: number[], source: import("../sources/source.js").Source, selection: any, onSelect: (fields: any) => void}} props */
function Checkpoints({ run, steps, source, selection, onSelect }) {
  const step = /^\d+$/.test(selection.checkpoint) ? Number(selection.checkpoint) : run.step; // an address may say `best`
  const at = Math.max(0, steps.findLastIndex((each) => each <= step));
  const [seen, setSeen] = useState(at);
  const [wanted, setWanted] = useState(step);
  const [running, setRunning] = useState(/** @type {number | null} */ (null)); // the step that is replayed
  useEffect(() => setSeen(at), [at]);
  useEffect(() => setWanted(step), [step]);
  const look = (/** @type {number} */ to) => onSelect({ checkpoint: String(to) });
  const want = (/** @type {number} */ to) => (atHand(run, steps, String(to)) ? look(to) : setWanted(to));
  return html`<div class="checkpoints">
    <label class="slider">Checkpoint <output>step ${seen === at ? step : steps[seen]}</output>
      <input type="range" name="checkpoint" min="0" max=${steps.length - 1} value=${seen} aria-valuetext=${`step ${steps[seen]}`}
        onInput=${(/** @type {any} */ event) => setSeen(Number(event.target.value))}
        onChange=${(/** @type {any} */ event) => look(steps[Number(event.target.value)])} />
    </label>
    <${NumberField} label="Step" name="step" value=${wanted} low=${0} high=${Math.max(...steps, run.step)} onChange=${want} />
    ${run.average > 1 && html`<button type="button" aria-pressed=${selection.checkpoint === "latest"} onClick=${() => onSelect({ checkpoint: "latest" })}>mean of ${run.average}</button>`}
    <${Marked} selection=${selection} step=${run.average > 1 && selection.checkpoint === "latest" ? -1 : step} look=${look} />
    ${(running !== null || !atHand(run, steps, String(wanted))) && html`<${Replay} run=${run} source=${source} step=${wanted} running=${running} setRunning=${setRunning} selection=${selection} look=${look} />`}
  </div>`;
}

/** Buttons that switch to the two marked steps. @param {{selection: any, step: number, look: (step: number) => void}} props */
function Marked({ selection, step, look }) {
  const marks = ["before", "after"].filter((name) => selection[name] >= 0);
  return marks.length > 0 && html`<div class="marked" role="group" aria-label="marked steps">
    ${marks.map((name) => html`<button key=${name} type="button" aria-pressed=${step === selection[name]} onClick=${() => look(selection[name])}>${name} ${selection[name]}</button>`)}
  </div>`;
}

/** The button that replays a step whose weights are not kept. @param {{run: any, step: number, running: number | null, setRunning: (step: number | null) => void, source: import("../sources/source.js").Source, selection: any, look: (step: number) => void}} props */
function Replay({ run, step, running, setRunning, source, selection, look }) {
  const [said, setSaid] = useState("");
  const isShown = useRef(true);
  const wantedNow = useRef(step);
  wantedNow.current = step;
  useEffect(() => setSaid(""), [step]);
  useEffect(() => () => {
    isShown.current = false;
  }, []);
  const go = async () => {
    setRunning(step);
    setSaid("opening the training");
    const stop = followProgress(source, REPLAY, (words) => words && setSaid(words.includes("of") ? `${words} steps` : words));
    try {
      setReplayed(run, await source.replay({ ...selection, checkpoint: String(step) }), source);
      setSaid("");
      if (isShown.current && wantedNow.current === step) look(step); // not if another run or step was chosen meanwhile
    } catch (error) {
      setSaid(error instanceof Refused ? error.message : source.gone);
    }
    stop();
    setRunning(null);
  };
  return html`<div class="replay">
    ${running !== null
      ? html`<button type="button" onClick=${() => source.end(REPLAY)}>Cancel</button> <span role="status">replaying step ${running}: ${said}</span>`
      : html`<button type="button" class="is-main" onClick=${go}>Replay step ${step}</button> <span role="status">${said || "not kept: training is repeated bit for bit, which may take long"}</span>`}
  </div>`;
}
