// The page as its server shows it: the selection lives in the address.
import { drawPage } from "./app.js";
import { html, useState } from "./core/html.js";
import { fromAddress, toAddress } from "./core/selection.js";
import { save, useSaid } from "./parts/taking.js";
import { exported, GONE, serverOf } from "./sources/server.js";
import { Refused } from "./sources/source.js";
import { signal } from "./vendor/signals-core.js";

async function begin() {
  const response = await fetch("api/runs");
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  if (!response.ok) {
    place.textContent = await response.text();
    return;
  }
  const { runs, first } = await response.json();
  const selection = signal(fromAddress(location.search, first));
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", toAddress(selection.value, first) + location.hash);
  addEventListener("popstate", () => (selection.value = fromAddress(location.search, first)));
  const onSelect = (/** @type {any} */ fields) => {
    const chosen = { ...selection.value, ...fields };
    const [before, address] = [toAddress(selection.value, first), toAddress(chosen, first)];
    selection.value = chosen;
    try {
      if (address !== before) history.pushState(null, "", address);
    } catch {
      // Safari takes a hundred changes in half a minute: those of a key that is held come into no history there.
    }
  };
  drawPage(place, { runs, selection, onSelect, source: serverOf(runs), Tool: Export });
}

/** The whole page as one file. @param {{run: any, selection: any}} props */
function Export({ run, selection }) {
  const [said, tell] = useSaid();
  const [isWriting, setWriting] = useState(false);
  const take = async () => {
    setWriting(true);
    try {
      const file = await exported(selection);
      save(file, `${run.name.replaceAll(/[^\w.-]+/g, "-")}.html`);
      tell(`${(file.size / 2 ** 20).toFixed(1)} MB`);
    } catch (error) {
      tell(error instanceof Refused ? error.message : GONE, true);
    }
    setWriting(false);
  };
  return html`<span class="export"><button type="button" title="the whole page as it is now, as one file that opens without a server" disabled=${isWriting} onClick=${take}>Export</button>
    ${isWriting ? html`<span class="said" role="status">writing</span>` : said}</span>`;
}

begin();
