// Export from a view: to the clipboard, to a file.
import { html, useRef, useState } from "../core/html.js";

const READ = 2500; // milliseconds that a message stays

/** Copy a text to the clipboard; returns a message on the result. @param {string} text */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch {
    return "copying is not possible here";
  }
}

/** @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/**
 * What a button's work led to: a message that passes, but for a failure, whose message stays until the next one. Returns its element, and a function that sets it.
 * @returns {[any, (words: string, failed?: boolean) => void]}
 */
export function useSaid() {
  const [{ words, failed }, setSaid] = useState({ words: "", failed: false });
  const passing = useRef(0);
  const tell = (/** @type {string} */ words, failed = false) => {
    clearTimeout(passing.current);
    setSaid({ words, failed });
    if (!failed) passing.current = setTimeout(() => setSaid({ words: "", failed: false }), READ);
  };
  return [html`<span class=${failed ? "said is-error" : "said"} role=${failed ? "alert" : "status"}>${words}</span>`, tell];
}

/** Lines of Python with a button to copy them. @param {{title: string, text: string}} props */
export function Snippet({ title, text }) {
  const [said, tell] = useSaid();
  const copy = async () => tell(await copied(text));
  return html`<h4>${title} <button type="button" onClick=${copy}>Copy</button> ${said}</h4>
    <pre class="snippet" tabindex="0" aria-label=${title}>${text}</pre>`;
}
