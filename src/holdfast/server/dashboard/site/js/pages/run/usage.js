// Tokens, money and budgets in words.

import { html } from "../../html.js";
import { count, duration, money, plural, short } from "../../format.js";

export function costOf(usage) {
  if (!usage || !usage.calls) return "";
  if (usage.usd === null) return "price not known";
  return `${money(usage.usd)}${usage.unpriced ? "+" : ""}`;
}

export const tokensOf = (usage) => (usage && usage.calls ? `${short(usage.input_tokens)} in, ${short(usage.output_tokens)} out` : "");

export function Spent({ usage }) {
  if (!usage || !usage.calls) return null;
  const cached = usage.cached_tokens ? ` (${count(usage.cached_tokens)} of them cached)` : "";
  const unpriced = usage.unpriced ? `; the price of ${plural(usage.unpriced, "call")} is not known` : "";
  const whole = `${plural(usage.input_tokens, "token")} in${cached}, ${count(usage.output_tokens)} out${unpriced}`;
  return html`<span class="spent" title=${whole}><strong>${costOf(usage)}</strong> ${tokensOf(usage)}</span>`;
}

const WORDS = { usd: (n) => money(n), tokens: (n) => `${count(Math.round(n))} tokens`, turns: (n) => plural(Math.round(n), "turn"), seconds: (n) => `${duration(n)} of work` };

// "$4.02 of $5.00", for each limit of a budget.
export const leftOf = (budget, left) => Object.keys(budget).map((name) => `${WORDS[name](left[name])} of ${WORDS[name](budget[name])}`);
