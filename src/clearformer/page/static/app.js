// The page: the lens bar above, and every view below it, each asked for again when what it uses is selected anew.
import { html, render, useEffect, useMemo, useRef } from "./core/html.js";
import { atHand, stepsOf } from "./core/live.js";
import { PageModel } from "./core/model.js";
import { keyOf } from "./core/selection.js";
import { useSignal } from "./core/signal.js";
import { Frame } from "./parts/frame.js";
import { goTo } from "./parts/going.js";
import { LensBar } from "./parts/lens_bar.js";
import attention from "./views/attention.js";
import beams from "./views/beams.js";
import block from "./views/block.js";
import classes from "./views/classes.js";
import comparison from "./views/comparison.js";
import corpus from "./views/corpus.js";
import continuations from "./views/continuations.js";
import interventions from "./views/interventions.js";
import ledger from "./views/ledger.js";
import learned from "./views/learned.js";
import lens from "./views/lens.js";
import lossChanges from "./views/loss_changes.js";
import meanings from "./views/meanings.js";
import overview from "./views/overview.js";
import score from "./views/score.js";
import sampling from "./views/sampling.js";
import sources from "./views/sources.js";
import tokens from "./views/tokens.js";
import training from "./views/training.js";

/** @type {Record<string, any>} */
export const VIEWS = { overview, comparison, tokens, block, attention, ledger, sources, score, classes, meanings, lens, sampling, continuations, beams, interventions, training, loss_changes: lossChanges, corpus, learned };
const NEAR = "600px"; // of the window: views further away are asked for when one comes nearer

/** @typedef {import("./sources/source.js").Source} Source */

/**
 * The page, whose selection is a signal.
 * @typedef {object} PageProps
 * @property {any[]} runs
 * @property {any} selection
 * @property {(fields: any) => void} onSelect
 * @property {Source} source
 * @property {any} [banner] what stands above the bar
 * @property {(props: {run: any, selection: any}) => any} [Tool] what stands beside the views' names
 */

/** Draw the page in an element. @param {HTMLElement} place @param {PageProps} page */
export function drawPage(place, page) {
  place.textContent = "";
  render(html`<${Page} ...${page} />`, place);
}

/** @param {PageProps} props */
function Page({ runs, selection, onSelect, source, banner, Tool }) {
  const chosen = useSignal(selection);
  const run = runs.find((each) => each.name === chosen.run) ?? runs[0];
  const steps = useSignal(stepsOf(run, source));
  const missing = atHand(run, steps, chosen.checkpoint) ? "" : `step ${chosen.checkpoint} is not kept: replay it in the bar above`;
  const had = chosen.versus ? { ...run.views, ...run.views_of_two } : run.views;
  const views = Object.keys(VIEWS).filter((name) => name in had).map((name) => [name, had[name]]);
  useEffect(() => {
    document.title = `${run.name} · clearformer`;
  }, [run.name]);
  useEffect(() => goTo(location.hash.slice(1), "instant"), []);
  return html`
    ${banner}
    <header class="top">
      <h1 class="name"><b>clearformer</b> ${run.name} <small>step ${shownStep(run, chosen.checkpoint)}</small></h1>
      <nav aria-label="views">${views.map(([name, view]) => html`<a key=${name} href=${`#${name}`} onClick=${(/** @type {MouseEvent} */ event) => opensHere(event) && goTo(name)}>${view.title}</a>`)}${Tool && html`<${Tool} run=${run} selection=${chosen} />`}</nav>
      <fieldset class="bar" disabled=${source.fixed.includes("text")}><${LensBar} runs=${runs} steps=${steps} source=${source} selection=${chosen} onSelect=${onSelect} /></fieldset>
    </header>
    <main>${views.map(([name, view]) => html`<${Asked} key=${`${run.name} ${name}`} name=${name} ...${view} chosen=${chosen} missing=${view.uses.includes("checkpoint") ? missing : ""} onSelect=${onSelect} source=${source} />`)}</main>
  `;
}

/** The step that is shown, and how many checkpoints its weights are the mean of. @param {any} run @param {string} checkpoint */
function shownStep(run, checkpoint) {
  if (checkpoint !== "latest") return checkpoint;
  return run.average > 1 ? `${run.step}, mean of ${run.average} checkpoints` : `${run.step}`;
}

/** Whether a click on a link opens it in this window. @param {MouseEvent} event */
function opensHere(event) {
  return !(event.ctrlKey || event.metaKey || event.shiftKey);
}

/**
 * One view, asked for once it comes near, and again when the fields that it uses change.
 * @param {{name: string, title: string, about: string, uses: string[], chosen: any, missing: string, onSelect: (selection: any) => void, source: Source}} props
 */
function Asked({ name, title, about, uses, chosen, missing, onSelect, source }) {
  const model = useMemo(() => new PageModel(name, onSelect, source), [name]);
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const isNear = useRef(false);
  const asked = useRef("");
  const ask = () => {
    const key = keyOf(model.get("selection"), uses);
    if (!isNear.current || VIEWS[name].byHand || !(VIEWS[name].isReady?.(model.get("selection")) ?? true) || (key === asked.current && !missing)) return;
    asked.current = missing ? "" : key;
    if (missing) {
      model.drop(); // an answer about another step would take the place of these words
      model.set("error", missing);
      return;
    }
    model.ask(model.get("selection"));
  };
  const askNow = useRef(ask); // the observer lasts, and each rendering has an `ask` of its own
  askNow.current = ask;
  model.look(chosen);
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => {
      isNear.current = entries.at(-1)?.isIntersecting ?? false; // the newest, where several have waited
      askNow.current();
    }, { rootMargin: NEAR });
    if (place.current?.firstElementChild) watch.observe(place.current.firstElementChild); // the view itself, which may be enlarged
    return () => {
      watch.disconnect();
      model.drop();
    };
  }, []);
  useEffect(ask, [chosen, missing]);
  return html`<div ref=${place}><${Frame} id=${name} title=${title} about=${about} model=${model} view=${VIEWS[name]} /></div>`;
}
