// The page: the lens bar above, and every view below it, each asked for again when what it uses is selected anew.
import { html, render, useEffect, useMemo, useRef } from "./core/html.js";
import { atHand, stepsOf } from "./core/live.js";
import { PageModel } from "./core/model.js";
import { fromAddress, keyOf, toAddress } from "./core/selection.js";
import { useSignal } from "./core/signal.js";
import { Frame } from "./parts/frame.js";
import { LensBar } from "./parts/lens_bar.js";
import { signal } from "./vendor/signals-core.js";
import attention from "./views/attention.js";
import beams from "./views/beams.js";
import block from "./views/block.js";
import corpus from "./views/corpus.js";
import continuations from "./views/continuations.js";
import interventions from "./views/interventions.js";
import ledger from "./views/ledger.js";
import learned from "./views/learned.js";
import lens from "./views/lens.js";
import lossChanges from "./views/loss_changes.js";
import overview from "./views/overview.js";
import sampling from "./views/sampling.js";
import tokens from "./views/tokens.js";
import training from "./views/training.js";

/** @type {Record<string, any>} */
const VIEWS = { overview, tokens, block, attention, ledger, lens, sampling, continuations, beams, interventions, training, loss_changes: lossChanges, corpus, learned };
const NEAR = "600px"; // of the window: views further away are asked for when one comes nearer

async function begin() {
  const response = await fetch("api/runs");
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  if (!response.ok) {
    place.textContent = await response.text();
    return;
  }
  const { runs, first } = await response.json();
  const selection = signal(fromAddress(location.search, first));
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", toAddress(selection.value, first));
  addEventListener("popstate", () => (selection.value = fromAddress(location.search, first)));
  const onSelect = (/** @type {any} */ fields) => {
    const chosen = { ...selection.value, ...fields };
    const address = toAddress(chosen, first);
    if (address !== toAddress(selection.value, first)) history.pushState(null, "", address);
    selection.value = chosen;
  };
  place.textContent = "";
  render(html`<${Page} runs=${runs} selection=${selection} onSelect=${onSelect} />`, place);
}

/** @param {{runs: any[], selection: any, onSelect: (fields: any) => void}} props */
function Page({ runs, selection, onSelect }) {
  const chosen = useSignal(selection);
  const run = runs.find((each) => each.name === chosen.run) ?? runs[0];
  const steps = useSignal(stepsOf(run));
  const missing = atHand(run, steps, chosen.checkpoint) ? "" : `step ${chosen.checkpoint} is not kept: replay it in the bar above`;
  const views = Object.entries(run.views).filter(([name]) => name in VIEWS);
  useEffect(() => {
    document.title = `${run.name} · clearformer`;
  }, [run.name]);
  return html`
    <header class="top">
      <h1 class="name"><b>clearformer</b> ${run.name} <small>step ${chosen.checkpoint === "latest" ? run.step : chosen.checkpoint}</small></h1>
      <nav aria-label="views">${views.map(([name, view]) => html`<a key=${name} href=${`#${name}`}>${view.title}</a>`)}</nav>
      <${LensBar} runs=${runs} steps=${steps} selection=${chosen} onSelect=${onSelect} />
    </header>
    <main>${views.map(([name, view]) => html`<${Asked} key=${`${run.name} ${name}`} name=${name} ...${view} chosen=${chosen} missing=${view.uses.includes("checkpoint") ? missing : ""} onSelect=${onSelect} />`)}</main>
  `;
}

/**
 * One view, asked for once it comes near, and again when the fields that it uses change.
 * @param {{name: string, title: string, about: string, uses: string[], chosen: any, missing: string, onSelect: (selection: any) => void}} props
 */
function Asked({ name, title, about, uses, chosen, missing, onSelect }) {
  const model = useMemo(() => new PageModel(name, onSelect), [name]);
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const isNear = useRef(false);
  const asked = useRef("");
  const ask = () => {
    const key = keyOf(model.get("selection"), uses);
    if (!isNear.current || VIEWS[name].byHand || !(VIEWS[name].isReady?.(model.get("selection")) ?? true) || (key === asked.current && !missing)) return;
    asked.current = missing ? "" : key;
    if (missing) {
      model.set("error", missing);
      return;
    }
    model.ask(model.get("selection"));
  };
  model.set("selection", chosen);
  useEffect(() => {
    const watch = new IntersectionObserver(([entry]) => {
      isNear.current = entry.isIntersecting;
      ask();
    }, { rootMargin: NEAR });
    if (place.current) watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  useEffect(ask, [chosen, missing]);
  return html`<div ref=${place}><${Frame} id=${name} title=${title} about=${about} model=${model} view=${VIEWS[name]} /></div>`;
}

begin();
