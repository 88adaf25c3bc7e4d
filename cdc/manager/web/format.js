// Numbers, times and sizes as text.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : short.format(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 && value > 0 ? value.toFixed(1) : compact(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${Number(value.toFixed(value < 1 ? 2 : 1))} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} days`;
}

export function size(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${Number(value.toFixed(value < 10 && unit ? 1 : 0))} ${units[unit]}`;
}

export function ago(time) {
  if (!time) return "never";
  const age = (Date.now() - Date.parse(time)) / 1000;
  return age < 1 ? "now" : `${seconds(Math.floor(age))} ago`;
}

export function clock(time, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false, ...(withSeconds ? { second: "2-digit" } : {}) };
  return new Date(time).toLocaleTimeString("en-GB", options);
}

export function moment(time) {
  const date = new Date(time);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return date.toDateString() === new Date().toDateString() ? clock(time) : `${day}, ${clock(time)}`;
}
