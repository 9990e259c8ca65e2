// Numbers and times for people, with their units. What is not there is a dash.
const NONE = "–";

const integer = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const fixed = new Map();

function known(value) {
  return value !== null && value !== undefined;
}

// 1,234,567
export function count(value) {
  return known(value) ? integer.format(value) : NONE;
}

// `digits` behind the point; the API's words for what is not finite stay words
export function number(value, digits = 3) {
  if (!known(value)) return NONE;
  if (typeof value === "string") return value;
  if (!fixed.has(digits))
    fixed.set(
      digits,
      new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    );
  return fixed.get(digits).format(value);
}

// 0.0003 as 3.00e-4
export function small(value) {
  if (!known(value) || typeof value === "string") return number(value);
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : number(value, 4);
}

// 12.3K, 4.56M
export function compact(value) {
  if (!known(value) || typeof value === "string") return number(value);
  return short.format(value);
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.floor((100 * part) / whole)}%` : NONE;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? integer.format(value) : value.toPrecision(3)} ${units[unit]}`;
}

// 850 ms, 12 s, 3 min 20 s, 2 h 5 min, 4 d 3 h
export function duration(s) {
  if (!known(s)) return NONE;
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", 1, "s");
  if (whole < 86400) return two(whole, 3600, "h", 60, "min");
  return two(whole, 86400, "d", 3600, "h");
}

function two(s, large, largeUnit, little, littleUnit) {
  const rest = Math.floor((s % large) / little);
  return `${Math.floor(s / large)} ${largeUnit}${rest ? ` ${rest} ${littleUnit}` : ""}`;
}

// "3 min ago" of an ISO time
export function ago(time, now = Date.now()) {
  if (!time) return NONE;
  const s = Math.max(0, (now - Date.parse(time)) / 1000);
  return s < 10 ? "just now" : `${duration(Math.floor(s)).split(" ").slice(0, 2).join(" ")} ago`;
}

const clock = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

// The time in the reader's zone
export function when(time) {
  return time ? clock.format(new Date(time)) : NONE;
}
