// A logit as the sum of the contributions of the text's tokens: an exact decomposition, but not a causal effect.
import { html, select, view } from "../core/html.js";
import { signed, tiny, visible } from "../core/words.js";
import { Shares } from "../parts/shares.js";

const NAMES = /** @type {Record<string, string>} */ ({ text: "", source: "The source’s tokens", output: "The tokens written so far" });

/** @param {{model: any, found: any}} props */
function Sources({ model, found }) {
  const texts = [...new Set(/** @type {any[]} */ (found.parts).map((part) => part.text))];
  const most = Math.max(...found.parts.map((/** @type {any} */ part) => Math.abs(part.value)));
  const foil = found.foil ? ` − ${visible(found.foil)}` : "";
  return html`<div class="sources">
    <p class="sum">logit of <code>${visible(found.target)}${foil}</code> ${found.token ? html`after <code>${visible(found.token)}</code>` : "of the text"}: <b>${signed(found.logit)}</b>, including biases of ${signed(found.biases)}
      <span class="badge" title="how far the sum of the shares is from the logit">|sum − logit| = ${tiny(found.error)}</span></p>
    ${texts.map((text) => html`<${OneText} key=${text} title=${NAMES[text]} parts=${found.parts.filter((/** @type {any} */ part) => part.text === text)} most=${most} model=${text === "source" ? null : model} position=${found.token ? found.position : null} />`)}
  </div>`;
}

/** @param {{title: string, parts: any[], most: number, model: any, position: number | null}} props */
function OneText({ title, parts, most, model, position }) {
  const shares = parts.map((part) => ({
    token: part.token,
    value: part.value,
    chosen: model !== null && position !== null && part.position === position,
    words: `${part.position}: embedding ${signed(part.embedding)}${part.order ? `, its position ${signed(part.order)}` : ""}`,
    open: model === null ? undefined : () => select(model, { position: part.position }),
  }));
  return html`${title && html`<h3>${title}</h3>`}<${Shares} shares=${shares} most=${most} name=${title || "the share of each token"} />`;
}

export default view(Sources);
