// The frame around every view: its heading, progress, errors, and the buttons to save its contents.
import { html, useEffect, useLayoutEffect, useRef, useState, useTrait } from "../core/html.js";
import { Refused } from "../sources/source.js";
import { copied, save, useSaid } from "./taking.js";

const PICTURES = ["svg", "png"];
const SLOW = 300; // milliseconds before waiting is shown

/**
 * @param {object} props
 * @param {string} props.id
 * @param {string} props.title
 * @param {string} props.about
 * @param {import("../core/model.js").PageModel} props.model
 * @param {{hasControls?: boolean, byHand?: boolean, isReady?: (selection: any) => boolean, render: (props: {model: any, el: HTMLElement}) => () => void}} props.view
 * @param {boolean} [props.canEnlarge] false inside another page, such as a notebook
 */
export function Frame({ id, title, about, model, view, canEnlarge = true }) {
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const answer = useTrait(model, "answer");
  const error = useTrait(model, "error");
  const kept = useTrait(model, "kept");
  const waiting = useSlow(useTrait(model, "busy"));
  const progress = useTrait(model, "progress");
  const ended = useTrait(model, "ended") && !waiting;
  const selection = useTrait(model, "selection");
  const isComing = !answer && !error && !view.byHand && (view.isReady?.(selection) ?? true);
  const [large, setLarge] = useState(false);
  const [asTable, setAsTable] = useState(false);
  useEffect(() => (place.current ? view.render({ model, el: place.current }) : undefined), [view, model]);
  useLayoutEffect(() => {  // not an ordinary effect: a key may be pressed before the next paint
    if (!large) return undefined;
    /** @param {KeyboardEvent} event */
    const close = (event) => event.key === "Escape" && setLarge(false);
    const leave = () => setLarge(false);
    const hidden = place.current ? around(place.current.closest("section")) : [];
    hidden.forEach((element) => (element.inert = true));
    addEventListener("keydown", close);
    addEventListener("leave", leave);
    return () => {
      hidden.forEach((element) => (element.inert = false));
      removeEventListener("keydown", close);
      removeEventListener("leave", leave);
    };
  }, [large]);
  return html`<section id=${id} class=${large ? "view is-large" : isComing ? "view is-waiting" : "view"} aria-labelledby=${`${id}-title`}>
    <header key="header">
      <h2 id=${`${id}-title`}>${title}</h2>
      <p>${about}${[kept, ofRuns(answer?.runs, selection?.versus)].filter(Boolean).map((words) => html` <span key=${words} class="badge">${words}</span>`)}</p>
      <nav aria-label=${`${title}: save or copy`}>
        <button type="button" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)}>Table</button>
        <${Taking} id=${id} model=${model} answer=${error ? null : answer} />
        ${canEnlarge && html`<button type="button" aria-pressed=${large} onClick=${() => setLarge(!large)}>${large ? "Close" : "Enlarge"}</button>`}
      </nav>
    </header>
    <p key="error" class="error" role="alert">${error}${error && ended && html` <button type="button" onClick=${() => model.ask(model.get("selection"))}>Ask again</button>`}</p>
    <p key="state" class="state" role="status">${waiting ? html`computing${progress && `: ${progress}`} ${progress && html`<button type="button" onClick=${() => model.end()}>Cancel</button>`}` : isComing ? "waiting for the model" : ""}</p>
    <div key="content" class=${(error && !view.hasControls) || asTable ? "content is-hidden" : error ? "content is-stale" : "content"} ref=${place}></div>
    ${asTable && answer && !error && html`<${AsTable} model=${model} answer=${answer} />`}
    ${!error && !view.hasControls && answer?.notes.map((/** @type {string} */ note) => html`<p class="note">${note}</p>`)}
  </section>`;
}

/** All that is not in an element, whatever its place on the page; without what cannot be reached anyway. @param {Element | null} element */
function around(element) {
  /** @type {HTMLElement[]} */
  const found = [];
  for (let at = element; at?.parentElement; at = at.parentElement) found.push(.../** @type {HTMLElement[]} */ ([...at.parentElement.children].filter((each) => each !== at)));
  return found.filter((each) => !each.inert);
}

/** A label of the runs that a view compares. @param {string[] | undefined} runs @param {string | undefined} versus */
function ofRuns(runs, versus) {
  if (!runs || !versus) return "";
  return runs.length > 1 ? `${runs[1]} − ${runs[0]}` : `${runs[0]} only: no difference`;
}

/** @param {{id: string, model: import("../core/model.js").PageModel, answer: any}} props */
export function Taking({ id, model, answer }) {
  const [said, tell] = useSaid();
  const copy = async () => tell(await copied(answer.python));
  /** @param {() => Promise<Blob>} made @param {string} ending */
  const take = async (made, ending) => {
    try {
      save(await made(), `${id}.${ending}`);
      tell("");
    } catch (error) {
      tell(error instanceof Refused ? error.message : model.source.gone, true);
    }
  };
  const csv = async () => new Blob([asCsv(await model.table())], { type: "text/csv" });
  return html`
    <button type="button" disabled=${!answer} onClick=${copy}>Copy as Python</button>
    <button type="button" disabled=${!answer} onClick=${() => take(csv, "csv")}>CSV</button>
    ${PICTURES.map((kind) => html`<button key=${kind} type="button" disabled=${!answer || !model.draws} title=${model.draws ? "" : "this page was exported without pictures"} onClick=${() => take(() => model.picture(kind), kind)}>${kind.toUpperCase()}</button>`)}
    ${said}
  `;
}

/** A view as a table, requested again whenever the view has a new answer. @param {{model: import("../core/model.js").PageModel, answer: any}} props */
function AsTable({ model, answer }) {
  const most = 500;
  const { caption } = answer;
  const [table, setTable] = useState(/** @type {{heads: string[], rows: string[][], words: number} | null} */ (null));
  const [error, setError] = useState("");
  useEffect(() => {
    const asking = new AbortController();
    setError("");
    setTable(null); // its rows are of an earlier answer
    const refused = (/** @type {any} */ error) => asking.signal.aborted || setError(error instanceof Refused ? error.message : model.source.gone);
    model.table(asking.signal).then((made) => asking.signal.aborted || setTable(made), refused);
    return () => asking.abort();
  }, [answer]);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!table) return html`<p class="state" role="status">computing</p>`;
  return html`<div class="as-table" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption>${caption}</caption>
      <thead><tr>${table.heads.map((head, i) => html`<th key=${i} scope="col" class=${i < table.words ? "" : "is-number"}>${head}</th>`)}</tr></thead>
      <tbody>${table.rows.slice(0, most).map((row, r) => html`<tr key=${r}>${row.map((cell, i) => html`<td key=${i} class=${i < table.words ? "" : "is-number"}>${cell}</td>`)}</tr>`)}</tbody>
    </table>
    ${table.rows.length > most && html`<p class="note">${table.rows.length - most} more rows are in the CSV</p>`}
  </div>`;
}

/** @param {{heads: string[], rows: string[][]}} table */
function asCsv({ heads, rows }) {
  const quoted = (/** @type {string} */ cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  return [heads, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

/** Whether something has been busy for long enough to show it. @param {boolean} busy */
function useSlow(busy) {
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    if (!busy) {
      setSlow(false);
      return undefined;
    }
    const timer = setTimeout(() => setSlow(true), SLOW);
    return () => clearTimeout(timer);
  }, [busy]);
  return slow;
}
