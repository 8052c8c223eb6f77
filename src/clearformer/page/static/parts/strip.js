// The text as a row of tokens, one of them chosen, each coloured by an amount.
import { html, useLayoutEffect, useRef } from "../core/html.js";
import { visible } from "../core/words.js";

/**
 * @param {object} props
 * @param {string[]} props.tokens
 * @param {number} props.chosen
 * @param {(position: number) => void} props.onChoose
 * @param {string} props.name
 * @param {number[]} [props.shares] the amount of each token, 0 to 1; for differences, -1 to 1
 * @param {(position: number) => string} [props.say]
 * @param {(position: number) => void} [props.onOpen] on Enter or a double click
 */
export function Strip({ tokens, chosen, onChoose, name, shares, say, onOpen }) {
  const list = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useLayoutEffect(() => { // the choice may follow an answer: the focus goes with it
    const focused = /** @type {any} */ (list.current?.getRootNode())?.activeElement;
    if (focused && list.current?.contains(focused)) /** @type {HTMLElement | null} */ (list.current.querySelector("[aria-selected=true]"))?.focus();
  }, [chosen]);
  /** @param {KeyboardEvent} event */
  const move = (event) => {
    if (event.key === "Enter") onOpen?.(chosen);
    const last = tokens.length - 1;
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowUp: chosen - 10, ArrowDown: chosen + 10, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onChoose(Math.min(last, Math.max(0, to)));
  };
  return html`<div class="strip" role="listbox" aria-label=${name} aria-orientation="horizontal" ref=${list} onKeyDown=${move}>
    ${tokens.map((token, i) => html`<span key=${i} role="option" class=${shares && shares[i] < 0 ? "is-less" : ""} tabindex=${i === chosen ? 0 : -1} aria-selected=${i === chosen}
      aria-label=${`${i}: ${visible(token)}${say ? `, ${say(i)}` : ""}`} title=${`${i}${say ? ` · ${say(i)}` : ""}`}
      style=${shares ? { "--share": Math.abs(shares[i]) } : {}} onClick=${() => onChoose(i)} onDblClick=${() => onOpen?.(i)}>${visible(token)}</span>`)}
  </div>`;
}

/** Count from the start a position that may be negative. @param {number} position @param {number} n */
export function fromStart(position, n) {
  const at = position < 0 ? n + position : position;
  return Math.min(n - 1, Math.max(0, at));
}
