// The sampling desk: the sorted vocabulary, the cut of each setting, the drawn token, and steps from draw to draw.
import { html, isFixed, select, useMemo, useState, useTrait, view } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { number, thousands, visible } from "../core/words.js";
import { NumberField } from "../parts/fields.js";

const AT_FIRST = 30;
const PLACE = ["text", "output", "position", "drawn"]; // the fields that say what is drawn after
const NAMES = { top_k: "top-k", top_p: "top-p", min_p: "min-p" };

/** @param {{model: any, found: any, selection: any}} props */
function Sampling({ model, found, selection }) {
  const draws = !found || found.drawn !== null;
  return html`<div class="desk">
    ${draws && html`<${Settings} model=${model} selection=${selection} />`}
    ${found && draws && html`<${Steps} model=${model} found=${found} selection=${selection} />`}
    ${found && (draws ? html`<${Facts} found=${found} />` : html`<p>The model predicts the class of the whole text: these are its classes, and nothing is drawn.</p>`)}
    ${found && html`<${Vocabulary} model=${model} selection=${selection} likeliest=${found} target=${selection.target} isFixed=${isFixed(model, "target")} onTarget=${(/** @type {string} */ target) => select(model, { target })} />`}
  </div>`;
}

/** @param {{model: any, selection: any}} props */
function Settings({ model, selection }) {
  const set = (/** @type {string} */ name) => (/** @type {number} */ value) => select(model, { [name]: value });
  return html`<fieldset class="settings" disabled=${isFixed(model, "temperature")} aria-label="how tokens are drawn">
    <${NumberField} label="Temperature" name="temperature" value=${selection.temperature} low=${0.05} high=${5} step=${0.05} onChange=${set("temperature")} />
    <${NumberField} label="Top-k" name="top_k" value=${selection.top_k} low=${0} high=${10_000_000} hint="0: off" onChange=${set("top_k")} />
    <${NumberField} label="Top-p" name="top_p" value=${selection.top_p} low=${0.01} high=${1} step=${0.01} hint="1: off" onChange=${set("top_p")} />
    <${NumberField} label="Min-p" name="min_p" value=${selection.min_p} low=${0} high=${1} step=${0.01} hint="0: off" onChange=${set("min_p")} />
    <${NumberField} label="Repetition penalty" name="repetition_penalty" value=${selection.repetition_penalty} low=${0.1} high=${10} step=${0.05} hint="1: off" onChange=${set("repetition_penalty")} />
    <${NumberField} label="Seed" name="desk_seed" value=${selection.seed} low=${0} high=${2 ** 31 - 1} onChange=${set("seed")} />
  </fieldset>`;
}

/** The draws so far, and the buttons for the next step. @param {{model: any, found: any, selection: any}} props */
function Steps({ model, found, selection }) {
  const drawn = selection.drawn;
  // By the attribute `disabled`, a button would lose the focus until the next answer.
  const isBehind = keyOf(useTrait(model, "asked"), PLACE) !== keyOf(selection, PLACE);
  const append = (/** @type {number} */ place) => isBehind || go([...drawn, found.ids.data[at(place)]]);
  const go = (/** @type {number[]} */ ids) => select(model, { drawn: ids });
  const at = (/** @type {number} */ place) => found.places.indexOf(place);
  const token = (/** @type {number} */ place) => html`<code>${visible(found.tokens[at(place)])}</code>`;
  const adopt = () => select(model, { [found.family === "encoder-decoder" ? "output" : "text"]: found.text, position: -1, drawn: [] });
  if (found.family === "encoder") return null;
  return html`<div class="steps">
    <p class="so-far" aria-label="the text so far">${visible(found.text).slice(-240)}<mark>${visible(found.tokens[at(found.drawn)])}</mark></p>
    <fieldset class="actions" disabled=${isFixed(model, "drawn")} aria-label="next step">
      <button type="button" class="is-main" disabled=${found.ended} aria-disabled=${isBehind} onClick=${() => append(found.drawn)}>Append ${token(found.drawn)}</button>
      <button type="button" disabled=${found.ended} aria-disabled=${isBehind} onClick=${() => append(found.greedy)}>Greedy: ${token(found.greedy)}</button>
      <button type="button" disabled=${!drawn.length} onClick=${() => go(drawn.slice(0, -1))}>Step back</button>
      <button type="button" onClick=${() => select(model, { seed: selection.seed + 1 })}>Fork: seed ${selection.seed + 1}</button>
      <button type="button" disabled=${!drawn.length} onClick=${() => go([])}>Start over</button>
      <button type="button" disabled=${!drawn.length} onClick=${adopt}>Read this text in all views</button>
    </fieldset>
    ${found.ended && html`<p class="note">The text has ended.</p>`}
  </div>`;
}

/** @param {{found: any}} props */
function Facts({ found }) {
  const [n, at] = [found.n_tokens, found.places.indexOf(found.drawn)];
  return html`<dl class="facts">
    <dt>drawn</dt><dd><code>${visible(found.tokens[at])}</code> with probability ${number(found.kept.data[at])}, the model's own ${number(found.own.data[at])}; place ${found.drawn + 1} of ${thousands(n)}</dd>
    ${found.number !== null && html`<dt>by chance</dt><dd>the random number ${number(found.number)} falls between ${number(found.interval[0])} and ${number(found.interval[1])}, this token's interval when the tokens are ordered by id</dd>`}
    <dt>drawn from</dt><dd>${thousands(found.n_left)} of ${thousands(n)} tokens, which hold ${number(found.left)} of the probability</dd>
    <dt>entropy</dt><dd>${number(found.entropy_before, 3)} nats (the model's own), ${number(found.entropy_after, 3)} (drawn from)</dd>
    ${found.penalised !== null && html`<dt>penalty</dt><dd>takes ${number(found.penalised)} of the probability from the tokens of the text so far</dd>`}
  </dl>`;
}

/** The likeliest tokens; the others are requested when a user wants to see them. @param {{model: any, selection: any, likeliest: any, target: string | null, isFixed: boolean, onTarget: (token: string) => void}} props */
function Vocabulary({ model, selection, likeliest, target, isFixed, onTarget }) {
  const [most, setMost] = useState(AT_FIRST);
  const [found, { busy, error, has, ask }] = useWhole(model, selection, likeliest);
  const n = found.n_tokens;
  const shown = Math.min(most, has, n);
  const next = Math.min(n, most * 4);
  const more = () => {
    setMost(next);
    if (next > has) ask();
  };
  const largest = (/** @type {Float32Array} */ values) => values.subarray(0, shown).reduce((most, value) => Math.max(most, value)); // too many for arguments
  const high = Math.max(found.probabilities.data[0], largest(found.kept.data), largest(found.own.data));
  const cutsAt = (/** @type {number} */ place) => found.cuts.filter((/** @type {any} */ cut) => cut.removed > 0 && cut.place === place);
  const below = found.cuts.filter((/** @type {any} */ cut) => cut.place > shown || cut.removed === 0);
  const rows = [];
  for (let i = 0; i < shown; i++) {
    for (const cut of cutsAt(i)) rows.push(html`<${CutLine} key=${cut.name} cut=${cut} />`);
    rows.push(html`<${Token} key=${i} found=${found} place=${i} high=${high} isTarget=${found.tokens[i] === target} isFixed=${isFixed} onTarget=${onTarget} />`);
  }
  for (const cut of cutsAt(shown)) rows.push(html`<${CutLine} key=${cut.name} cut=${cut} />`);
  return html`<div class="vocabulary-frame">
    ${found.drawn !== null && html`<p class="legend vocabulary-legend"><i class="is-whole"></i> at this temperature <i class="is-kept"></i> drawn from <b></b> the model's own</p>`}
    <ol class="vocabulary" aria-label="the vocabulary, likeliest first">${rows}</ol>
    ${below.map((/** @type {any} */ cut) => html`<p key=${cut.name} class="note">${wordsOf(cut)}${cut.removed ? `, after the token at place ${thousands(cut.place)}` : ""}</p>`)}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${shown < n && html`<button type="button" disabled=${busy} onClick=${more}>show ${thousands(next - shown)} more of ${thousands(n)}</button>`}
    ${most > AT_FIRST && html`<button type="button" onClick=${() => setMost(AT_FIRST)}>show ${AT_FIRST}</button>`}
  </div>`;
}

/**
 * The vocabulary of an answer: its likeliest tokens, or all of them once they were requested.
 * @param {any} model @param {any} selection @param {any} likeliest
 * @returns {[any, {busy: boolean, error: string, has: number, ask: () => void}]}
 */
function useWhole(model, selection, likeliest) {
  const vocabulary = useMemo(() => model.beside("vocabulary"), [model]);
  const whole = useTrait(vocabulary, "found");
  const [busy, error] = [useTrait(vocabulary, "busy"), useTrait(vocabulary, "error")];
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const ask = () => {
    setAsked(likeliest);
    vocabulary.ask(selection);
  };
  const isHere = asked === likeliest && whole && !busy && !error;
  const found = isHere ? whole : likeliest;
  const has = found.places.findLastIndex((/** @type {number} */ place, /** @type {number} */ i) => place === i) + 1;
  return [found, { busy: busy && asked === likeliest, error: asked === likeliest ? error : "", has, ask }];
}

/** @param {any} cut */
function wordsOf(cut) {
  const name = `${/** @type {any} */ (NAMES)[cut.name]} ${cut.setting}`;
  return cut.removed ? `${name} cuts here: removes ${thousands(cut.removed)} tokens with ${number(cut.mass)} of the probability` : `${name} removes nothing`;
}

/** @param {{cut: any}} props */
function CutLine({ cut }) {
  return html`<li class="cut">${wordsOf(cut)}</li>`;
}

/** @param {{found: any, place: number, high: number, isTarget: boolean, isFixed: boolean, onTarget: (token: string) => void}} props */
function Token({ found, place, high, isTarget, isFixed, onTarget }) {
  const [own, whole, kept] = [found.own, found.probabilities, found.kept].map((each) => each.data[place]);
  const wide = (/** @type {number} */ p) => `${(100 * p) / high}%`;
  const marks = [place === found.drawn && "drawn", place === found.greedy && found.drawn !== null && "greedy", found.repeated.data[place] && "penalised", isTarget && "target"].filter(Boolean);
  const classes = ["vocabulary-token", kept === 0 && "is-removed", place === found.drawn && "is-drawn"].filter(Boolean).join(" ");
  const words = `${visible(found.tokens[place])}: ${number(whole)} at this temperature, ${kept ? `drawn with ${number(kept)}` : "removed"}, the model's own ${number(own)}`;
  return html`<li class=${classes}><button type="button" disabled=${isFixed} title=${words} aria-label=${[words, ...marks].join(", ")} onClick=${() => onTarget(found.tokens[place])}>
    <small>${place + 1}</small>
    <span class="bar-name">${visible(found.tokens[place])}</span>
    <span class="bar-track"><i class="is-whole" style=${{ width: wide(whole) }}></i>${kept > 0 && html`<i class="is-kept" style=${{ width: wide(kept) }}></i>`}<b style=${{ left: wide(own) }}></b></span>
    <span class="bar-value">${number(whole)}</span>
    <span class="bar-value">${found.drawn === null ? "" : kept ? number(kept) : "removed"}</span>
    <span class="marks">${marks.map((mark) => html`<em key=${mark}>${mark}</em>`)}</span>
  </button></li>`;
}

export default view(Sampling, { hasControls: true });
