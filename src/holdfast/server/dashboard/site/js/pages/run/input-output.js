// What went into a run, what came out, and what was sent to it meanwhile.

import { html } from "../../html.js";
import { ago } from "../../format.js";
import { Empty } from "../../components.js";
import { isEnded } from "./rows.js";
import { Fault, Named } from "./values.js";

export function InAndOut({ story }) {
  return html`<div class="in-and-out">
    <div class="panel"><${Named} level="h2" name="Input" of=${story.inputs} /></div>
    <div class="panel">
      ${story.error
        ? html`<${Named} level="h2" name="Error"><${Fault} error=${story.error} /><//>`
        : story.state === "completed"
          ? html`<${Named} level="h2" name="Output" of=${story.output} size=${story.output_size ?? 0} />`
          : html`<h2>Output</h2><${Empty}>${isEnded(story.state) ? "It has none." : "It has not ended yet."}<//>`}
    </div>
    ${story.pending_signals.length
      ? html`<div class="panel"><h2>Signals that nothing has taken yet</h2>${story.pending_signals.map((one) => html`<${Named} key=${one.id} name="${one.name}, sent ${ago(one.sent_at)}" of=${one.value} />`)}</div>`
      : null}
  </div>`;
}
