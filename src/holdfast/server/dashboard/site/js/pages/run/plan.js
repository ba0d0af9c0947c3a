// The latest plan of an agent's run.

import { html } from "../../html.js";
import { EmptyState } from "../../components.js";

const STATUS_LABELS = { done: ["✓", "done"], working: ["●", "being worked on"], open: ["○", "open"], dropped: ["–", "dropped"] };

export function Plan({ plan }) {
  if (!plan.length) return html`<${EmptyState}>This run has written no plan.<//>`;
  return html`<ol class="plan">
    ${plan.map((one, index) => html`<li key=${index} class=${one.status}><span aria-hidden="true">${STATUS_LABELS[one.status][0]}</span> ${one.task} <span class="faint">${STATUS_LABELS[one.status][1]}</span></li>`)}
  </ol>`;
}
