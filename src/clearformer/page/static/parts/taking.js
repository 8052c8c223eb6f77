// Export from a view: to the clipboard, to a file.
import { html, useState } from "../core/html.js";

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

/** Lines of Python with a button to copy them. @param {{title: string, text: string}} props */
export function Snippet({ title, text }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    setSaid(await copied(text));
    setTimeout(() => setSaid(""), READ);
  };
  return html`<h4>${title} <button type="button" onClick=${copy}>Copy</button> <span class="said" role="status">${said}</span></h4>
    <pre class="snippet" tabindex="0" aria-label=${title}>${text}</pre>`;
}
