// Numbers, times, and money as text. Pure: tests run it without a browser.

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds); // rounded once, so that there is never a 60th second
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(s / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// "3 min ago" or "in 3 min"; `now` is in milliseconds.
export function formatRelativeTime(at, now = Date.now()) {
  if (!at) return "";
  const seconds = (now - Date.parse(at)) / 1000;
  const formatDistance = (s) => (s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`);
  if (seconds < -1) return `in ${formatDistance(-seconds)}`;
  return seconds < 1 ? "now" : `${formatDistance(seconds)} ago`;
}

export function formatTime(at) {
  if (!at) return "";
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

// How the answer of a model was cut off; "" if it was not.
export function describeCutOff({ finish_reason, refusal, is_continued }) {
  if (finish_reason === "length") return `Cut off at the limit of tokens${is_continued ? "; the model was asked to continue" : ""}.`;
  if (finish_reason === "content_filter") return `Cut off by the content filter${refusal ? `: ${refusal}` : "."}`;
  return "";
}

export const formatCount = (number) => Number(number ?? 0).toLocaleString("en-GB");

export function formatShortCount(number) {
  const n = Number(number ?? 0);
  if (n < 1000) return String(n);
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)}M`;
}

// Dollars, from a text with a decimal number, with as many digits as matter.
export function formatMoney(text) {
  if (text === null || text === undefined) return "";
  const dollars = Number(text);
  if (dollars === 0) return "$0";
  if (Math.abs(dollars) >= 1) return `$${dollars.toLocaleString("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${dollars.toFixed(Math.min(6, Math.max(2, 1 - Math.floor(Math.log10(Math.abs(dollars))))))}`;
}

export function formatBytes(number) {
  if (number < 1024) return `${number} B`;
  if (number < 1048576) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / 1048576).toFixed(1)} MiB`;
}

export const pluralize = (number, word, pluralWord = `${word}s`) => `${formatCount(number)} ${Number(number) === 1 ? word : pluralWord}`;

// A value as text: texts as they are, everything else as JSON.
export const formatValue = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
