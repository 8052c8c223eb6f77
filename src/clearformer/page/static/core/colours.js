// Colours of numbers: cividis for amounts, blue to orange for signed values. Colour-blind readers can read both.
import { useEffect, useState } from "./html.js";

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const SIGNS = {
  light: ["#08519c", "#3182bd", "#9ecae1", "#f7f7f5", "#fdbe85", "#e6750f", "#a63603"],
  dark: ["#6baed6", "#3a7fb5", "#26496b", "#1d2229", "#6b4320", "#c8701e", "#fd9a4a"],
};

/** @param {string} hex @returns {[number, number, number]} */
function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

/** @param {string[]} stops */
function table(stops) {
  const points = stops.map(rgb);
  const colours = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    for (let c = 0; c < 3; c++) colours[3 * i + c] = points[low][c] + (at - low) * (points[low + 1][c] - points[low][c]);
  }
  return colours;
}

const TABLES = { amount: table(CIVIDIS), light: table(SIGNS.light), dark: table(SIGNS.dark) };

/** @type {boolean | null} */
let told = null;

/** Set whether the surroundings are dark, if that does not follow the browser's scheme. @param {boolean} dark */
export function tellDark(dark) {
  told = dark;
}

export function isDark() {
  return told ?? matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Whether the surroundings are dark; a component that asks is drawn anew when the browser's scheme changes. */
export function useDark() {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(isDark());
    scheme.addEventListener("change", change);
    return () => scheme.removeEventListener("change", change);
  }, []);
  return dark;
}

const NOTHING = { light: [226, 228, 226], dark: [44, 50, 58] };

/**
 * The colour of a number by its place between two limits; grey for NaN.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @param {boolean} signed
 * @returns {[number, number, number]}
 */
export function colour(value, low, high, signed) {
  if (Number.isNaN(value)) return /** @type {[number, number, number]} */ (NOTHING[isDark() ? "dark" : "light"]);
  const colours = signed ? TABLES[isDark() ? "dark" : "light"] : TABLES.amount;
  const part = high > low ? (value - low) / (high - low) : 0;
  const i = 3 * Math.round(255 * Math.min(1, Math.max(0, Number.isFinite(part) ? part : 0)));
  return [colours[i], colours[i + 1], colours[i + 2]];
}

/**
 * Like `colour`, for many numbers: returns a function that writes the colour of a number into an image's data.
 * @param {number} low
 * @param {number} high
 * @param {boolean} signed
 * @returns {(image: Uint8ClampedArray, place: number, value: number) => void}
 */
export function painter(low, high, signed) {
  const scheme = isDark() ? "dark" : "light";
  const colours = signed ? TABLES[scheme] : TABLES.amount;
  const [r, g, b] = NOTHING[scheme];
  const scale = high > low ? 255 / (high - low) : 0;
  return (image, place, value) => {
    const at = 4 * place;
    image[at + 3] = 255;
    if (Number.isNaN(value)) {
      image[at] = r;
      image[at + 1] = g;
      image[at + 2] = b;
      return;
    }
    const part = scale * (value - low);
    const i = 3 * Math.round(Math.min(255, Math.max(0, Number.isFinite(part) ? part : 0)));
    image[at] = colours[i];
    image[at + 1] = colours[i + 1];
    image[at + 2] = colours[i + 2];
  };
}

/** Black or white, whichever is readable on a colour. @param {[number, number, number]} on */
export function ink([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#11151a" : "#ffffff";
}
