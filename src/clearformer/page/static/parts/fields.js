// Input fields for numbers and texts of the selection.
import { html, useEffect, useRef, useState } from "../core/html.js";

const PAUSE = 350; // milliseconds without a key press before a text is selected

/**
 * A field for a number between two limits; of other input it says which they are. Unfinished input survives a new rendering of the view.
 * @param {{label: string, name: string, value: number | "", low: number, high: number, step?: number, hint?: string, onChange: (value: number) => void}} props
 */
export function NumberField({ label, name, value, low, high, step = 1, hint = "", onChange }) {
  const [typed, setTyped] = useState(String(value));
  const [isWrong, setWrong] = useState(false);
  useEffect(() => {
    setTyped(String(value));
    setWrong(false);
  }, [value]);
  const change = (/** @type {any} */ event) => {
    const wanted = Number(event.target.value);
    const fits = event.target.value !== "" && wanted >= low && wanted <= high && (step !== 1 || Number.isInteger(wanted));
    setWrong(!fits);
    if (fits) onChange(wanted);
  };
  return html`<label>${label}<input name=${name} type="number" min=${low} max=${high} step=${step} value=${typed} aria-invalid=${isWrong} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} onChange=${change} />${isWrong ? html`<small class="is-error" role="alert">${low} to ${high}</small>` : hint && html`<small>${hint}</small>`}</label>`;
}

/**
 * A field for a text, selected after a pause in typing; with `lines`, a field of several lines.
 * @param {{label: string, name: string, value: string, placeholder?: string, lines?: number, onChange: (value: string) => void}} props
 */
export function TextField({ label, name, value, placeholder = "", lines = 1, onChange }) {
  const [text, setText] = useState(value);
  const sent = useRef(value); // what comes back as `value` is no news: more may have been typed since
  useEffect(() => {
    if (value === sent.current) return;
    sent.current = value;
    setText(value);
  }, [value]);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => {
      sent.current = text;
      onChange(text);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  const type = (/** @type {any} */ event) => setText(event.target.value);
  const box = lines > 1
    ? html`<textarea name=${name} rows=${lines} spellcheck=${false} placeholder=${placeholder} value=${text} onInput=${type}></textarea>`
    : html`<input name=${name} type="text" spellcheck=${false} autocomplete="off" placeholder=${placeholder} value=${text} onInput=${type} />`;
  return html`<label>${label}${box}</label>`;
}
