// What a run asks people, to be answered in place.

import { html } from "../../html.js";
import { useGet } from "../../data.js";
import { Empty, ProblemNote } from "../../components.js";
import { Question } from "../../approval.js";

export function Questions({ story, who, onlyOpen = false }) {
  const { data, problem, again } = useGet("/v1/approvals", { run_id: story.id, include_closed: !onlyOpen, limit: 200 });
  if (!data) return html`<${ProblemNote} problem=${problem} again=${again} />`;
  const open = data.items.filter((one) => one.state === "open");
  const closed = data.items.filter((one) => one.state !== "open");
  return html`<h2 class="out-of-sight">Questions</h2>
    <${ProblemNote} problem=${problem} again=${again} />
    ${[...open, ...closed.reverse()].map((one) => html`<section key=${one.id} class="panel" aria-label="question"><${Question} approval=${one} who=${who} onAnswered=${again} /></section>`)}
    ${data.items.length || onlyOpen ? null : html`<${Empty}>This run has asked nobody anything.<//>`}`;
}
