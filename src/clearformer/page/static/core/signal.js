// Signals in components.
import { useEffect, useState } from "./html.js";

/**
 * Return the value of a signal, and render the component again whenever it changes.
 * @template T
 * @param {{value: T, subscribe: (listener: (value: T) => void) => () => void}} signal
 */
export function useSignal(signal) {
  const [value, setValue] = useState(signal.value);
  useEffect(() => signal.subscribe((now) => setValue(() => now)), [signal]);
  return value;
}
