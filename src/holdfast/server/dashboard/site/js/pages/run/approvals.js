// The approvals of a run, to be answered in place.

import { html } from "../../html.js";
import { ApprovalPanel } from "../../approval.js";
import { EmptyState, ProblemNote } from "../../components.js";
import { useGet } from "../../data.js";

export function RunApprovals({ report, caller, onlyOpen = false }) {
  const { data, problem, refresh } = useGet("/v1/approvals", { run_id: report.id, include_closed: !onlyOpen, limit: 200 });
  if (!data) return html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
  const open = data.items.filter((one) => one.state === "open");
  const closed = data.items.filter((one) => one.state !== "open");
  return html`<h2 class="out-of-sight">Questions</h2>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${[...open, ...closed.reverse()].map((one) => html`<section key=${one.id} class="panel" aria-label="question"><${ApprovalPanel} approval=${one} caller=${caller} onAnswered=${refresh} /></section>`)}
    ${data.items.length || onlyOpen ? null : html`<${EmptyState}>This run has asked nobody anything.<//>`}`;
}
