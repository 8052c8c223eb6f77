// The model card, and a map of the model's architecture: each box opens the view of its part.
import { html, select, view } from "../core/html.js";
import { amount, thousands } from "../core/words.js";
import { goTo } from "../parts/going.js";
import { fromStart } from "../parts/strip.js";

const OPENS = { attention: "attention", "cross-attention": "attention", head: "sampling", "token embedding": "tokens", "final norm": "lens", "feed-forward": "ledger" };
const HUES = { attention: "key", "cross-attention": "query", "feed-forward": "value", "token embedding": "stream", head: "loss" };

/** @typedef {{path: string, name: string, kind: string, stack: string, layer: number | null, parameters: number, isShared?: boolean}} Component */

/** @param {{model: any, found: any}} props */
function Overview({ model, found }) {
  const stacks = stacksOf(found.components);
  return html`<div class="overview">
    <dl class="card">
      <dt>family</dt><dd>${found.family}</dd>
      <dt>parameters</dt><dd>${thousands(found.parameters)}</dd>
      ${Object.entries(found.settings).filter(([key]) => MAIN.includes(key)).map(([key, value]) => html`<dt key=${key}>${key}</dt><dd>${value}</dd>`)}
    </dl>
    <div class="map">${stacks.map(({ name, components }) => html`<${Stack} key=${name} name=${name} components=${components} model=${model} />`)}</div>
    <${Shares} flops=${found.flops} />
  </div>`;
}

const MAIN = ["d_model", "n_layers", "n_decoder_layers", "vocab_size", "max_seq_len", "attention.kind", "attention.n_heads", "attention.n_kv_heads", "position.kind", "norm.kind", "ffn.kind", "placement", "tie_embeddings", "logit_soft_cap", "dropout"];

/**
 * The stacks, each with its parts once; parts of no stack follow the last one. Parts that an earlier stack has are marked as shared.
 * @param {Component[]} all
 */
function stacksOf(all) {
  const names = [...new Set(all.map((each) => each.stack))].filter((name, _, every) => name || every.length === 1);
  const last = names[names.length - 1];
  const first = new Map([...all].reverse().map((each) => [each.path, each]));
  const isOf = (/** @type {string} */ name, /** @type {Component} */ each) => each.stack === name || (each.stack === "" && name === last && first.get(each.path) === each);
  return names.map((name) => ({ name, components: all.filter((each) => isOf(name, each)).map((each) => ({ ...each, isShared: first.get(each.path) !== each })) }));
}

/** @param {{name: string, components: Component[], model: any}} props */
function Stack({ name, components, model }) {
  const layers = [...new Set(components.map((each) => each.layer))].filter((layer) => layer !== null);
  const chosen = fromStart(model.get("selection").layer, layers.length);
  const first = components.findIndex((each) => each.layer !== null);
  const before = components.filter((each, i) => each.layer === null && (first < 0 || i < first));
  const after = components.filter((each, i) => each.layer === null && first >= 0 && i > first);
  return html`<div class="stack" aria-label=${name || "the model"}>
    ${name && html`<h3>${name}</h3>`}
    ${before.map((each) => html`<${Box} key=${each.path} component=${each} model=${model} />`)}
    ${layers.length > 0 && html`<div class="blocks">
      <div class="layers" role="group" aria-label="layer">${layers.map((layer) => html`<button key=${layer} type="button" aria-pressed=${layer === chosen} onClick=${() => select(model, { layer: /** @type {number} */ (layer) })}>${layer}</button>`)}</div>
      <div class="block"><p>block ${chosen} of 0 to ${layers.length - 1}</p>
        ${components.filter((each) => each.layer === chosen).map((each) => html`<${Box} key=${each.path} component=${each} model=${model} />`)}
      </div>
    </div>`}
    ${after.map((each) => html`<${Box} key=${each.path} component=${each} model=${model} />`)}
  </div>`;
}

/** @param {{component: Component, model: any}} props */
function Box({ component, model }) {
  const { name, kind, parameters, path, stack, layer, isShared } = component;
  if (kind === "none") return null;
  const open = () => {
    if (layer !== null) select(model, { layer, part: stack === "encoder" ? "encoder" : name === "cross-attention" ? "cross_attn" : "attn" });
    goTo(/** @type {any} */ (OPENS)[name]);
  };
  const line = html`<b>${name}</b> ${kind && html`<span>${kind}</span>`} <small>${isShared ? "shared" : parameters ? amount(parameters) : "no parameters"}</small>`;
  const hue = `box hue-${/** @type {any} */ (HUES)[name] ?? "plain"}`;
  const leads = name in OPENS && (model.source.hasOthers || layer !== null);
  return leads ? html`<button type="button" class=${hue} title=${path} onClick=${open}>${line}</button>` : html`<div class=${hue} title=${path}>${line}</div>`;
}

/** @param {{flops: Record<string, number>}} props */
function Shares({ flops }) {
  const shares = Object.entries(flops).filter(([, share]) => share > 0);
  if (!shares.length) return null;
  return html`<div class="shares"><h3>compute of a forward pass</h3>
    ${shares.map(([name, share]) => html`<p key=${name}><span>${name}</span><i style=${{ width: `${100 * share}%` }}></i><b>${Math.round(100 * share)}%</b></p>`)}
  </div>`;
}

export default view(Overview);
