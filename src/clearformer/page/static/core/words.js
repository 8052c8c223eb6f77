// Numbers and tokens as text.

/** A token with visible spaces and line ends. @param {string} token */
export function visible(token) {
  return token.replaceAll(" ", "␣");
}

/** A token among words and numbers, which keep their order if it is written from right to left. @param {string} token */
export function isolated(token) {
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(token) ? `\u2068${token}\u2069` : token;
}

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 10 ** -digits || size >= 1e6) ? value.toExponential(2) : value.toFixed(digits);
}

/** A small number, such as the error of a sum. @param {number | null} value */
export function tiny(value) {
  return value === null ? "–" : value.toExponential(1);
}

/** A number with its sign. @param {number | null} value @param {number} [digits] */
export function signed(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return number(value);
  return (value < 0 ? "−" : "+") + number(Math.abs(value), digits);
}

/** @param {number} n */
export function thousands(n) {
  return n.toLocaleString("en");
}

/** A number in short form: 1.8M. @param {number} n */
export function amount(n) {
  if (n >= 999.95e6) return `${(n / 1e9).toFixed(1)}B`; // less is rounded to 999.9M
  if (n >= 999.95e3) return `${(n / 1e6).toFixed(1)}M`;
  return n >= 1e3 ? `${(n / 1e3).toFixed(1)}k` : String(n);
}
