// All runs that belong together, from the topmost one down.

import { html } from "../../html.js";
import { part } from "../../api.js";
import { useGet } from "../../data.js";
import { duration, plural } from "../../format.js";
import { Badge, Note, ProblemNote, State } from "../../components.js";
import { href } from "../../router.js";
import { costOf, Spent, tokensOf } from "./usage.js";
import { statesOf, treeOf } from "./tree.js";

export function Tree({ story }) {
  const { data, problem, again } = useGet(`/v1/runs/${part(story.id)}/tree`);
  if (!data) return html`<${ProblemNote} problem=${problem} again=${again} />`;
  const rows = treeOf(data);
  const top = rows.find((one) => one.id === data.root);
  const states = Object.entries(statesOf(data.items)).map(([state, many]) => `${many} ${state}`).join(", ");
  return html`<${ProblemNote} problem=${problem} again=${again} />
    <p>${plural(rows.length, "run")}${data.has_more ? " and more" : ""}: ${states}. ${top?.usage ? html`All together: <${Spent} usage=${top.usage} />` : null}</p>
    <ul class="tree" aria-label="runs that belong together">
      ${rows.map((one) => html`<li key=${one.id} class="depth-${Math.min(6, one.depth)} ${one.id === story.id ? "here" : ""}">
        <span class="who">${one.depth ? html`<span class="faint" aria-hidden="true">└ </span>` : null}${one.id === story.id ? html`<strong aria-current="page">${one.id}</strong>` : html`<a href=${href("runs", one.id)}>${one.id}</a>`}
${" "}<span class="faint">${one.workflow}</span></span>
        <span><${State} state=${one.state} /> ${one.stall_reason ? html`<${Badge} tone="warn">stalled<//>` : null}</span>
        <span class="number">${duration(((one.finished_at ? Date.parse(one.finished_at) : Date.now()) - Date.parse(one.created_at)) / 1000)}</span>
        <span class="number" title=${tokensOf(one.usage)}>${costOf(one.usage)}</span>
      </li>`)}
    </ul>
    ${data.has_more ? html`<${Note}>There are more runs than are told here: <a href=${href("runs", "", { parent: story.id })}>those that this run has started</a>.<//>` : null}`;
}
