// The page as one file: its numbers stand in the file, and nothing is asked for.
import { drawPage } from "./app.js";
import { html } from "./core/html.js";
import { useSignal } from "./core/signal.js";
import { Snippet } from "./parts/taking.js";
import { block, Embedded } from "./sources/embedded.js";
import { signal } from "./vendor/signals-core.js";

async function begin() {
  const source = new Embedded(await block("index"));
  const selection = signal(source.index.first);
  const onSelect = (/** @type {any} */ fields) => (selection.value = source.chosen(selection.value, fields));
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  drawPage(place, { runs: [source.index.run], selection, onSelect, source, banner: html`<${Banner} source=${source} />` });
}

/** What an exported page is of, what it cannot do, and how to open it live. @param {{source: Embedded}} props */
function Banner({ source }) {
  const refused = useSignal(source.refused);
  return html`<aside class="banner" aria-label="an exported page">
    <p>${source.index.about}</p>
    <${Snippet} title="live, by Python" text=${source.index.python} />
    <p class="refused" role="status">${refused}</p>
  </aside>`;
}

begin();
