// The intervention desk: heads and networks as switches, other edits as lines of text, and their effects.
import { html, isFixed, select, useState, view } from "../core/html.js";
import { number, signed, visible } from "../core/words.js";
import { Drawn, largest, SurpriseLegend } from "../parts/drawn.js";
import { NumberField, TextField } from "../parts/fields.js";

const PLACE = /^(encoder_|decoder_)?blocks\.(\d+)\.(?:(attn|cross_attn)\.hook_z:(\d+)|hook_mlp_out|hook_resid_pre)$/;
const VERBS = { zero: "switch off", scale: "scale", mean: "replace by the mean over positions", patch: "patch from the other text" };

/** @param {{model: any, found: any, selection: any}} props */
function Interventions({ model, found, selection }) {
  const edits = /** @type {string[]} */ (selection.edits);
  const set = (/** @type {string[]} */ chosen) => select(model, { edits: chosen });
  const toggle = (/** @type {string} */ line) => set(edits.includes(line) ? edits.filter((each) => each !== line) : [...edits, line]);
  return html`<div class="desk">
    <fieldset class="desk" disabled=${isFixed(model, "edits")} aria-label="edits">
    ${found && html`<${Switches} found=${found} edits=${edits} onToggle=${toggle} />`}
    ${found && html`<${Composer} found=${found} donor=${selection.donor ?? ""} onAdd=${(/** @type {string} */ line) => edits.includes(line) || set([...edits, line])} onDonor=${(/** @type {string} */ donor) => select(model, { donor: donor || null })} />`}
    <${Made} edits=${edits} onRemove=${(/** @type {string} */ line) => toggle(line)} onClear=${() => set([])} />
    </fieldset>
    ${found && html`<${Losses} found=${found} />`}
    ${found && html`<div class="beside"><${Predictions} found=${found} isFixed=${isFixed(model, "target")} onTarget=${(/** @type {string} */ target) => select(model, { target })} /><${TextLosses} found=${found} onPosition=${(/** @type {number} */ position) => select(model, { position })} /></div>`}
    ${found && found.continued_before && html`<${Written} found=${found} />`}
  </div>`;
}

/** The place of a site, in words and in the grid. @param {string} label */
function placeOf(label) {
  const [, stack = "", layer, part, head] = label.match(PLACE) ?? [label, "", "0", undefined, undefined];
  const kind = part ?? (label.includes("resid") ? "residual" : "network");
  return { row: `${stack}${layer} ${part ?? ""}`, name: `${stack ? stack.replace("coder_", "c ") : ""}${layer}${part === "cross_attn" ? " cross" : ""}`, stack, layer: Number(layer), kind, head };
}

/** @param {{found: any, edits: string[], onToggle: (line: string) => void}} props */
function Switches({ found, edits, onToggle }) {
  const rows = [...new Set(found.heads.map((/** @type {string} */ label) => placeOf(label).row))];
  const networkOf = (/** @type {any} */ place) => found.networks.find((/** @type {string} */ each) => placeOf(each).stack === place.stack && placeOf(each).layer === place.layer);
  return html`<div class="switches" role="group" aria-label="heads and networks: press to switch off, press again to restore">
    ${rows.map((row) => {
      const heads = found.heads.filter((/** @type {string} */ label) => placeOf(label).row === row);
      const place = placeOf(heads[0]);
      const network = place.kind === "cross_attn" ? undefined : networkOf(place);
      return html`<div class="switch-row" key=${row}><span>${place.stack ? place.name : `layer ${place.name}`}</span>
        ${heads.map((/** @type {string} */ label) => html`<${Switch} key=${label} label=${label} words=${placeOf(label).head} edits=${edits} onToggle=${onToggle} />`)}
        ${network && html`<${Switch} label=${network} words="network" edits=${edits} onToggle=${onToggle} />`}
      </div>`;
    })}
    <p class="note">Each row is a layer, each number one of its heads: press to switch it off, press again to restore it.</p>
  </div>`;
}

/** @param {{label: string, words: string | undefined, edits: string[], onToggle: (line: string) => void}} props */
function Switch({ label, words, edits, onToggle }) {
  const line = `zero ${label}`;
  const isOff = edits.includes(line);
  return html`<button type="button" class="switch" aria-pressed=${isOff} aria-label=${`${label}${isOff ? ", switched off" : ""}`} title=${label} onClick=${() => onToggle(line)}>${words}${isOff ? " off" : ""}</button>`;
}

/** The controls that compose any other edit. @param {{found: any, donor: string, onAdd: (line: string) => void, onDonor: (text: string) => void}} props */
function Composer({ found, donor, onAdd, onDonor }) {
  const [verb, setVerb] = useState("patch");
  const [site, setSite] = useState("");
  const [position, setPosition] = useState(-1);
  const [factor, setFactor] = useState(0.5);
  const sites = [...found.residuals, ...found.heads, ...found.networks];
  const chosen = sites.includes(site) ? site : sites[0];
  const line = `${verb} ${chosen}${position < 0 ? "" : `@${position}`}${verb === "scale" ? ` ${factor}` : ""}`;
  return html`<div class="settings" role="group" aria-label="another edit">
    <label>Edit<select name="verb" value=${verb} onChange=${(/** @type {any} */ event) => setVerb(event.target.value)}>${Object.entries(VERBS).map(([key, words]) => html`<option key=${key} value=${key}>${words}</option>`)}</select></label>
    <label>Site<select name="site" value=${chosen} onChange=${(/** @type {any} */ event) => setSite(event.target.value)}>${sites.map((each) => html`<option key=${each} value=${each}>${inWords(each)}</option>`)}</select></label>
    <${NumberField} label="Position" name="edit_position" value=${position} low=${-1} high=${found.tokens.length - 1} hint="-1: all" onChange=${setPosition} />
    ${verb === "scale" && html`<${NumberField} label="Factor" name="factor" value=${factor} low=${-100} high=${100} step=${0.1} onChange=${setFactor} />`}
    ${verb === "patch" && html`<${TextField} label="Text to patch from (same number of tokens)" name="donor" value=${donor} placeholder="another text" onChange=${onDonor} />`}
    <button type="button" disabled=${verb === "patch" && !donor} onClick=${() => onAdd(line)}>Add edit</button>
  </div>`;
}

/** @param {string} label */
function inWords(label) {
  const { name, kind, head } = placeOf(label);
  return kind === "residual" ? `residual stream before layer ${name}` : kind === "network" ? `network of layer ${name}` : `layer ${name}, head ${head}`;
}

/** @param {{edits: string[], onRemove: (line: string) => void, onClear: () => void}} props */
function Made({ edits, onRemove, onClear }) {
  if (!edits.length) return html`<p class="note">No edits: both sides are the untouched model.</p>`;
  return html`<ul class="edits" aria-label="edits">
    ${edits.map((line) => html`<li key=${line}><code>${line}</code><button type="button" aria-label=${`remove ${line}`} onClick=${() => onRemove(line)}>remove</button></li>`)}
    ${edits.length > 1 && html`<li><button type="button" onClick=${onClear}>remove all</button></li>`}
  </ul>`;
}

/** @param {{found: any}} props */
function Losses({ found }) {
  const row = (/** @type {string} */ name, /** @type {any} */ before, /** @type {any} */ after) => html`<tr><th scope="row">${name}</th><td class="is-number">${number(before)}</td><td class="is-number">${number(after)}</td></tr>`;
  return html`<div><table class="before-after"><thead><tr><td></td><th scope="col" class="is-number">untouched</th><th scope="col" class="is-number">with the edits</th></tr></thead>
    <tbody>${row(found.metric, found.before, found.after)}
      ${found.loss_before !== null && row("mean loss of this text, nats", found.loss_before, found.loss_after)}
      ${found.held_out_before !== null && row("loss on a few held-out rows, nats", found.held_out_before, found.held_out_after)}</tbody></table>
    <p class="note">KL(untouched || with the edits) of the prediction: ${number(found.kl)} nats${found.held_out_note && `; ${found.held_out_note}`}</p></div>`;
}

/** The likeliest tokens with and without the edits. @param {{found: any, isFixed: boolean, onTarget: (token: string) => void}} props */
function Predictions({ found, isFixed, onTarget }) {
  const high = Math.max(...found.predicted.flatMap((/** @type {any} */ each) => [each.before, each.after]));
  const bar = (/** @type {number} */ p, /** @type {string} */ name) => html`<span class="bar-track"><i class=${name} style=${{ width: `${(100 * p) / high}%` }}></i></span>`;
  return html`<div><h3>${found.token ? html`at ${found.position}, <code>${visible(found.token)}</code>` : "the text's class"}</h3>
    <ul class="sides" aria-label="the likeliest tokens, untouched and with the edits">
      <li aria-hidden="true"><div><small></small><small>untouched</small><small></small><small>with the edits</small><small></small><small class="bar-value">logit</small></div></li>
      ${found.predicted.map((/** @type {any} */ each) => html`<li key=${each.id}><button type="button" disabled=${isFixed} title=${`logit ${number(each.logit_before)} untouched, ${number(each.logit_after)} with the edits`} onClick=${() => onTarget(each.token)}>
        <span class="bar-name">${visible(each.token)}</span>${bar(each.before, "is-whole")}<span class="bar-value">${number(each.before)}</span>${bar(each.after, "is-kept")}<span class="bar-value">${number(each.after)}</span>
        <span class="bar-value">${number(each.logit_before, 2)} → ${number(each.logit_after, 2)}</span></button></li>`)}
    </ul></div>`;
}

/** The effect of the edits on the loss of every token. @param {{found: any, onPosition: (position: number) => void}} props */
function TextLosses({ found, onPosition }) {
  const changes = [...found.loss_changes.data];
  const most = Math.max(0.1, ...changes.filter(Number.isFinite).map(Math.abs));
  if (!changes.some(Number.isFinite)) return null;
  return html`<div><h3>loss of each token, with the edits minus untouched</h3>
    <div class="changes">${found.tokens.map((/** @type {string} */ token, /** @type {number} */ i) => {
      const change = changes[i];
      const words = Number.isFinite(change) ? `${i}: ${visible(token)} predicts ${visible(found.targets[i])}, loss ${number(found.losses_before.data[i])} → ${number(found.losses_after.data[i])} (${signed(change)})` : `${i}: ${visible(token)}`;
      return html`<button key=${i} type="button" class=${change > 0 ? "is-worse" : "is-better"} style=${{ "--share": Number.isFinite(change) ? Math.abs(change) / most : 0 }} title=${words} aria-label=${words} onClick=${() => onPosition(i)}>${visible(token)}</button>`;
    })}</div>
    <p class="note">orange: predicted worse with the edits, blue: better; strongest at ${number(most, 2)} nats</p></div>`;
}

/** @param {{found: any}} props */
function Written({ found }) {
  const both = [found.continued_before, found.continued_after];
  const most = largest(both);
  return html`<div><h3>the continuation, with the same seed</h3>
    <ul class="continuations is-pair">${both.map((each, i) => html`<li key=${i}><small>${i ? "with the edits" : "untouched"}</small><${Drawn} tokens=${each.tokens} most=${most} /><span class="bar-value">log P ${number(each.logprob, 2)}</span></li>`)}</ul>
    <${SurpriseLegend} most=${most} /></div>`;
}

export default view(Interventions, { hasControls: true });
