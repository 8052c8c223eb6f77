// The training of a run, live while it trains: curves by step, two marks on them, and detected events.
import { colour, useDark } from "../core/colours.js";
import { html, isFixed, render, select, useEffect, useMemo, useState, useTrait } from "../core/html.js";
import { knownSteps, liveOf, merged } from "../core/live.js";
import { useSignal } from "../core/signal.js";
import { number, thousands } from "../core/words.js";
import { Curve } from "../parts/curve.js";
import { NumberField } from "../parts/fields.js";
import { Taking } from "../parts/frame.js";

const CURVES = [
  { title: "loss, nats", series: [{ name: "loss", label: "loss", colour: "--loss" }, { name: "val_loss", label: "held-out loss", colour: "--query" }] },
  { title: "gradient norm", series: [{ name: "grad_norm", label: "gradient norm", colour: "--key" }] },
  { title: "learning rate", series: [{ name: "lr", label: "learning rate", colour: "--value" }] },
];
const BY_LAYER = "grad_norm/";
const BESIDE = "beside ";
const MARKS = ["before", "after"];

/** @param {{model: import("../core/html.js").Model}} props */
function Training({ model }) {
  const selection = useTrait(model, "selection");
  const { lines: own, steps } = useSignal(liveOf(selection.run, model.source));
  const other = selection.versus === selection.run ? "" : selection.versus;
  const { lines: others } = useSignal(liveOf(other || selection.run, model.source));
  const lines = useMemo(() => (other ? inOnePicture(own, others) : own), [own, others, other]);
  const curves = useMemo(() => (other ? CURVES.map((curve) => withOther(curve, other)) : CURVES), [other]);
  const events = useMemo(() => model.beside("events"), [model]);
  const found = useTrait(events, "found");
  const [next, setNext] = useState("before");
  const near = useTrait(model, "found");
  const ask = () => events.ask(model.get("selection"));
  useEffect(() => {
    if (near) ask();
  }, [Boolean(near), selection.run]);
  const known = useSignal(knownSteps(selection.run));
  const atHand = useMemo(() => merged(steps ?? [], known), [steps, known]);
  const kept = steps ?? [];
  const mark = (/** @type {any} */ fields) => select(model, fields);
  const pick = (/** @type {number} */ step) => {
    if (!atHand.length) return;
    mark({ [next]: nearest(atHand, step) });
    setNext(next === "before" ? "after" : "before");
  };
  const last = own[own.length - 1];
  const marks = marksOf(selection, found, () => true);
  const unnamed = marksOf(selection, found, () => false);
  const levels = found && found.bigram_loss !== null ? [{ value: found.bigram_loss, label: "bigram model" }] : [];
  const canMark = atHand.length > 1 && !isFixed(model, "before");
  const picks = canMark ? pick : undefined;
  return html`<div class="training">
    ${last && html`<p class="sum">step <b>${thousands(last.step)}</b>, loss <b>${number(latest(own, "loss"))}</b>, held-out loss <b>${number(latest(own, "val_loss"))}</b>${other && others.length > 0 && html`; beside, dashed, ${other}: loss <b>${number(latest(others, "loss"))}</b>, held-out loss <b>${number(latest(others, "val_loss"))}</b>`}</p>`}
    ${canMark && html`<${Marks} selection=${selection} atHand=${atHand} last=${last?.step ?? 0} next=${next} setNext=${setNext} mark=${mark} />`}
    ${lines.length > 0
      ? html`${curves.slice(0, 1).map((curve) => html`<${Curve} key=${curve.title} ...${curve} lines=${lines} marks=${marks} levels=${levels} onPick=${picks} />`)}
        <${ByLayer} lines=${own} marks=${unnamed} onPick=${picks} />
        ${curves.slice(1).map((curve) => html`<${Curve} key=${curve.title} ...${curve} lines=${lines} marks=${unnamed} onPick=${picks} />`)}`
      : html`<p class="note">this run has no metrics (an imported model has none)</p>`}
    <${Happened} model=${model} events=${events} kept=${kept} mark=${mark} ask=${ask} />
  </div>`;
}

/** A curve of both runs, the second dashed. @param {typeof CURVES[0]} curve @param {string} other */
function withOther({ title, series }, other) {
  const dashed = series.map(({ name, label, colour }) => ({ name: BESIDE + name, label: `${label}, ${other}`, colour, dashed: true }));
  return { title, series: [...series, ...dashed] };
}

/** The lines of two runs sorted by step, with a prefix to the names of the second run's values. @param {any[]} own @param {any[]} others */
function inOnePicture(own, others) {
  const renamed = others.map(({ step, ...values }) => ({ step, ...Object.fromEntries(Object.entries(values).map(([name, value]) => [BESIDE + name, value])) }));
  return [...own, ...renamed].sort((a, b) => a.step - b.step);
}

/** The two marks, and the choice of the one that a click on a curve sets. @param {{selection: any, atHand: number[], last: number, next: string, setNext: (name: string) => void, mark: (fields: any) => void}} props */
function Marks({ selection, atHand, last, next, setNext, mark }) {
  const isSet = MARKS.some((name) => selection[name] >= 0);
  return html`<div class="marks-desk" role="group" aria-label="marks on the curves">
    ${MARKS.map((name) => html`<${NumberField} key=${name} label=${`${name === "before" ? "Before" : "After"}: ${hintOf(selection[name], atHand)}`} name=${`mark_${name}`} value=${selection[name] < 0 ? "" : selection[name]} low=${0} high=${Math.max(last, ...atHand)} onChange=${(/** @type {number} */ step) => mark({ [name]: step })} />`)}
    ${MARKS.map((name) => html`<button key=${name} type="button" disabled=${selection[name] < 0} aria-pressed=${selection[name] >= 0 && selection.checkpoint === String(selection[name])} onClick=${() => mark({ checkpoint: String(selection[name]) })}>Show ${name}</button>`)}
    <span class="picks">a click on a curve marks the nearest available step as ${MARKS.map((name) => html`<button key=${name} type="button" aria-pressed=${next === name} onClick=${() => setNext(name)}>${name}</button> `)}</span>
    ${isSet && html`<button type="button" onClick=${() => mark({ before: -1, after: -1 })}>Clear marks</button>`}
  </div>`;
}

/** A hint on a mark: whether its weights are available. @param {number} step @param {number[]} atHand */
function hintOf(step, atHand) {
  return step < 0 ? "not set" : atHand.includes(step) ? "available" : "will be replayed";
}

/** The gradient norm of every part of the model, from the first layer to the last. @param {{lines: any[], marks: any[], onPick: any}} props */
function ByLayer({ lines, marks, onPick }) {
  const dark = useDark();
  const names = Object.keys(lines.find((line) => Object.keys(line).some((name) => name.startsWith(BY_LAYER))) ?? {}).filter((name) => name.startsWith(BY_LAYER));
  if (!names.length) return null;
  const series = names.map((name, i) => ({ name, label: name.slice(BY_LAYER.length).replace("_blocks.", " layer ").replace("blocks.", "layer "), colour: shade(i, names.length, dark) }));
  return html`<${Curve} title="gradient norm by layer, from the first to the last (logarithmic)" series=${series} lines=${lines} marks=${marks} log onPick=${onPick} />`;
}

/** A shade from dark to light, within the range that is visible on the page. @param {number} i @param {number} n @param {boolean} dark */
function shade(i, n, dark) {
  const part = n > 1 ? i / (n - 1) : 0;
  return `rgb(${colour(dark ? 0.3 + 0.7 * part : 0.85 * part, 0, 1, false).join()})`;
}

/** The list of events. @param {{model: any, events: any, kept: number[], mark: (fields: any) => void, ask: () => void}} props */
function Happened({ model, events, kept, mark, ask }) {
  const answer = useTrait(events, "answer");
  const found = useTrait(events, "found");
  const busy = useTrait(events, "busy");
  const progress = useTrait(events, "progress");
  const error = useTrait(events, "error");
  events.set("selection", model.get("selection"));
  const looked = found?.induction.length ?? 0;
  const points = found?.induction.map((/** @type {any} */ each) => ({ step: each.step, score: each.score })) ?? [];
  const [series] = useState([{ name: "score", label: "best score", colour: "--stream" }]);
  const shown = useMemo(() => points, [found]);
  return html`
    ${looked > 1 && html`<${Curve} title="best induction score of all heads, at every kept step" series=${series} lines=${shown} marks=${marksOf(model.get("selection"), found, (event) => event.name === "induction")} levels=${[{ value: thresholdOf(found), label: "threshold" }]} points />`}
    <div class="events">
      <h3>When it happened <span class="taking"><${Taking} id="events" model=${events} answer=${answer} /></span></h3>
      <p class="error" role="alert">${error}</p>
      <p class="state" role="status">${busy ? html`reading the weights of every kept step${progress && `: ${progress}`} <button type="button" onClick=${() => events.end()}>Cancel</button>` : ""}</p>
      ${found && html`<ul>${found.events.map((/** @type {any} */ event) => html`<${Happening} key=${event.name} event=${event} kept=${kept} mark=${mark} />`)}</ul>
        ${answer.notes.map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}`}
      ${!busy && !isFixed(model, "run") && (error || (found && kept.length > looked && looked > 0)) && html`<button type="button" onClick=${ask}>Look again</button>`}
    </div>`;
}

/** @param {{event: any, kept: number[], mark: (fields: any) => void}} props */
function Happening({ event, kept, mark }) {
  const isLoss = event.name === "bigram";
  const title = html`<b>${capital(event.title)}</b>`;
  if (event.reason) return html`<li>${title}: <span>unknown: ${event.reason}</span></li>`;
  if (event.step === null)
    return html`<li>${title}: <span>not yet${event.value === null ? "" : `; ${isLoss ? "held-out loss" : "best score"} ${number(event.value)}, to reach ${number(event.threshold)}`}</span></li>`;
  const [before, after] = aroundIn(kept, event);
  const when = isLoss || event.before === null ? `by step ${thousands(event.step)}` : `between step ${thousands(event.before)} and step ${thousands(event.step)}`;
  const what = isLoss ? "held-out loss" : "best score";
  return html`<li>${title} ${when}: <span>${what} ${event.value_before === null ? "" : html`${number(event.value_before)} → `}<b>${number(event.value)}</b>, to reach ${number(event.threshold)}${event.head && html`, by <code>${event.head}</code>`}</span>
    ${before !== undefined && after !== undefined && before < after && html` <button type="button" onClick=${() => mark({ before, after })}>Mark ${before} and ${after}</button>`}</li>`;
}

/** The kept steps around an event. @param {number[]} kept @param {any} event */
function aroundIn(kept, event) {
  const after = kept.find((step) => step >= event.step) ?? kept[kept.length - 1];
  const before = event.before === null ? kept[0] : kept.findLast((step) => step <= event.before) ?? kept[0];
  return [before, after];
}

/** The set marks and the events, some of them with a name. @param {any} selection @param {any} found @param {(event: any) => boolean} isNamed */
function marksOf(selection, found, isNamed) {
  const marks = MARKS.filter((name) => selection[name] >= 0).map((name) => ({ step: selection[name], label: name, dashed: false }));
  const events = found?.events.filter((/** @type {any} */ event) => event.step !== null).map((/** @type {any} */ event) => ({ step: event.step, label: isNamed(event) ? event.title : "", dashed: true })) ?? [];
  return [...marks, ...events];
}

/** @param {any} found */
function thresholdOf(found) {
  return found.events.find((/** @type {any} */ event) => event.name === "induction").threshold;
}

/** @param {number[]} kept @param {number} step */
function nearest(kept, step) {
  return kept.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best));
}

/** @param {string} words */
function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

/** @param {any[]} lines @param {string} name */
function latest(lines, name) {
  return lines.findLast((line) => Number.isFinite(line[name]))?.[name];
}

export default {
  /** @param {{model: any, el: HTMLElement}} props */
  render({ model, el }) {
    render(html`<${Training} model=${model} />`, el);
    return () => render(null, el);
  },
};
