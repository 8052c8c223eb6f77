// The change of the text's loss between the two marked steps, by part of the model.
import { html, select, useState, useTrait, view } from "../core/html.js";
import { number, signed, tiny } from "../core/words.js";
import { Bars } from "../parts/bars.js";

const AT_FIRST = 16;

/** @param {{model: any, found: any, selection: any}} props */
function LossChanges({ model, found, selection }) {
  const [most, setMost] = useState(AT_FIRST);
  const notes = useTrait(model, "answer")?.notes ?? [];
  const asked = useTrait(model, "asked"); // of the losses that are shown, which the selection may be ahead of
  if (!isMarked(selection)) return html`<p class="note">Mark a step before and a step after on the <a href="#training">training curves</a>: this ledger shows which parts made the loss fall between them.</p>`;
  if (!found) return null;
  const parts = [...found.parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const bars = parts.slice(0, most).map((part) => ({
    name: label(part),
    value: part.value,
    chosen: isHead(part) && layerOf(part) === selection.layer && part.head === selection.head && kindOf(part) === selection.part,
    open: isHead(part) ? () => select(model, { layer: layerOf(part), head: part.head, part: kindOf(part) }) : undefined,
  }));
  const { before, after } = asked;
  const isStale = before !== selection.before || after !== selection.after;
  return html`<div class=${isStale ? "loss-changes is-stale" : "loss-changes"}>
    <p class="sum">loss <b>${number(found.before)}</b> at step ${before} → <b>${number(found.after)}</b> at step ${after}: <b>${signed(found.after - found.before)}</b> nats
      <span class="badge" title="the part of the change that the sum misses">sum of the parts ${signed(found.sum)}, residue ${tiny(found.residue)}</span></p>
    <p class="legend"><i class="swatch is-negative"></i> lowered the loss <i class="swatch is-positive"></i> raised it</p>
    <${Bars} bars=${bars} name="parts of the change" />
    ${most < parts.length && html`<button type="button" onClick=${() => setMost(parts.length)}>show ${parts.length - most} more</button>`}
    ${notes.map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}
  </div>`;
}

/** @param {{name: string, head: number | null, kv_head: number | null}} part */
function label(part) {
  const name = part.name.replace("_blocks.", " layer ").replace("blocks.", "layer ").replace("cross_attn", "cross").replace(".", " ");
  if (part.kv_head !== null) return `${name} keys and values ${part.kv_head}`;
  return part.head === null ? name : `${name} head ${part.head}`;
}

/** Whether a part is a head that can be selected; in an encoder-decoder, only those of the decoder can. @param {{name: string, head: number | null}} part */
function isHead(part) {
  return part.head !== null && !part.name.startsWith("encoder_blocks");
}

/** @param {{name: string}} part */
function kindOf(part) {
  return part.name.includes("cross_attn") ? "cross_attn" : "attn";
}

/** @param {{name: string}} part */
function layerOf(part) {
  return Number(/blocks\.(\d+)/.exec(part.name)?.[1] ?? 0);
}

/** @param {any} selection */
function isMarked({ before, after }) {
  return before >= 0 && after >= 0;
}

export default view(LossChanges, { hasControls: true, isReady: isMarked });
