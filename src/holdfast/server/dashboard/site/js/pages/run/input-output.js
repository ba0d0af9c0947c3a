// The inputs and the output of a run, and the signals that it got.

import { html } from "../../html.js";
import { EmptyState } from "../../components.js";
import { formatRelativeTime } from "../../format.js";
import { isEnded } from "./rows.js";
import { ErrorDetails, NamedValue } from "./values.js";

export function InputOutput({ report }) {
  return html`<div class="in-and-out">
    <div class="panel"><${NamedValue} level="h2" name="Input" value=${report.inputs} /></div>
    <div class="panel">
      ${report.error
        ? html`<${NamedValue} level="h2" name="Error"><${ErrorDetails} error=${report.error} /><//>`
        : report.state === "completed"
          ? html`<${NamedValue} level="h2" name="Output" value=${report.output} size=${report.output_size ?? 0} />`
          : html`<h2>Output</h2><${EmptyState}>${isEnded(report.state) ? "It has none." : "It has not ended yet."}<//>`}
    </div>
    ${report.pending_signals.length
      ? html`<div class="panel"><h2>Signals that nothing has taken yet</h2>${report.pending_signals.map((one) => html`<${NamedValue} key=${one.id} name="${one.name}, sent ${formatRelativeTime(one.sent_at)}" value=${one.value} />`)}</div>`
      : null}
  </div>`;
}
