// The run tree, from its root down.

import { html } from "../../html.js";
import { encodePart } from "../../api.js";
import { Badge, Note, ProblemNote, StateBadge } from "../../components.js";
import { useGet } from "../../data.js";
import { formatDuration, pluralize } from "../../format.js";
import { buildHref } from "../../router.js";
import { buildTree, countStates } from "./tree.js";
import { formatCost, formatTokens, UsageText } from "./usage.js";

export function RunTree({ report }) {
  const { data, problem, refresh } = useGet(`/v1/runs/${encodePart(report.id)}/tree`);
  if (!data) return html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
  const rows = buildTree(data);
  const top = rows.find((one) => one.id === data.root);
  const states = Object.entries(countStates(data.items)).map(([state, count]) => `${count} ${state}`).join(", ");
  return html`<${ProblemNote} problem=${problem} refresh=${refresh} />
    <p>${pluralize(rows.length, "run")}${data.has_more ? " and more" : ""}: ${states}. ${top?.usage ? html`All together: <${UsageText} usage=${top.usage} />` : null}</p>
    <ul class="tree" aria-label="runs that belong together">
      ${rows.map((one) => html`<li key=${one.id} class="depth-${Math.min(6, one.depth)} ${one.id === report.id ? "here" : ""}">
        <span class="who">${one.depth ? html`<span class="faint" aria-hidden="true">└ </span>` : null}${one.id === report.id ? html`<strong aria-current="page">${one.id}</strong>` : html`<a href=${buildHref("runs", one.id)}>${one.id}</a>`}
${" "}<span class="faint">${one.workflow}</span></span>
        <span><${StateBadge} state=${one.state} /> ${one.stall_reason ? html`<${Badge} tone="warn">stalled<//>` : null}</span>
        <span class="number">${formatDuration(((one.finished_at ? Date.parse(one.finished_at) : Date.now()) - Date.parse(one.created_at)) / 1000)}</span>
        <span class="number" title=${formatTokens(one.usage)}>${formatCost(one.usage)}</span>
      </li>`)}
    </ul>
    ${data.has_more ? html`<${Note}>There are more runs than are told here: <a href=${buildHref("runs", "", { parent: report.id })}>those that this run has started</a>.<//>` : null}`;
}
