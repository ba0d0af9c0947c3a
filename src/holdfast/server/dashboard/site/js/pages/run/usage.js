// Tokens, money, and budgets as text.

import { html } from "../../html.js";
import { formatCount, formatDuration, formatMoney, formatShortCount, pluralize } from "../../format.js";

export function formatCost(usage) {
  if (!usage || !usage.calls) return "";
  if (usage.usd === null) return "price not known";
  return `${formatMoney(usage.usd)}${usage.unpriced ? "+" : ""}`;
}

export const formatTokens = (usage) => (usage && usage.calls ? `${formatShortCount(usage.input_tokens)} in, ${formatShortCount(usage.output_tokens)} out` : "");

export function UsageText({ usage }) {
  if (!usage || !usage.calls) return null;
  const cached = usage.cached_tokens ? ` (${formatCount(usage.cached_tokens)} of them cached)` : "";
  const unpriced = usage.unpriced ? `; the price of ${pluralize(usage.unpriced, "call")} is not known` : "";
  const fullText = `${pluralize(usage.input_tokens, "token")} in${cached}, ${formatCount(usage.output_tokens)} out${unpriced}`;
  return html`<span class="spent" title=${fullText}><strong>${formatCost(usage)}</strong> ${formatTokens(usage)}</span>`;
}

const LIMIT_FORMATTERS = { usd: (n) => formatMoney(n), tokens: (n) => `${formatCount(Math.round(n))} tokens`, turns: (n) => pluralize(Math.round(n), "turn"), seconds: (n) => `${formatDuration(n)} of work` };

// "$4.02 of $5.00", for each limit of a budget.
export const formatBudgetLeft = (budget, remaining) => Object.keys(budget).map((name) => `${LIMIT_FORMATTERS[name](remaining[name])} of ${LIMIT_FORMATTERS[name](budget[name])}`);
