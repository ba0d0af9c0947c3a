// One run: what it did, what it cost, and what to do now.

import { html, useEffect, useState } from "../html.js";
import { EmptyState, Note, ProblemNote } from "../components.js";
import { buildHref, updateQuery } from "../router.js";
import { RunApprovals } from "./run/approvals.js";
import { Conversation } from "./run/conversation.js";
import { DIALOGS } from "./run/dialogs.js";
import { EventList } from "./run/events.js";
import { RunHeader } from "./run/header.js";
import { InputOutput } from "./run/input-output.js";
import { Plan } from "./run/plan.js";
import { useRunReport } from "./run/report-reader.js";
import { Tabs } from "./run/tabs.js";
import { Timeline } from "./run/timeline.js";
import { RunTree } from "./run/tree-view.js";

export function RunPage({ arg, query, caller }) {
  const { report, problem, answers, inFlight, eventCount, refresh } = useRunReport(arg);
  const [dialog, setDialog] = useState(null); // { name, record, target: the report that it is about, which may be that of a child }
  useEffect(() => {
    // A link to "step 5 in the timeline" is resolved to its row here.
    if (!query.find || !report) return;
    const found = report.journal.find((one) => String(one.number) === query.find && one.kind !== "timer");
    updateQuery({ find: null, row: found ? `r${found.seq}` : null });
  }, [query.find, report === null]);
  if (!report) {
    if (!problem) return html`<p class="faint" role="status">The run is being read.</p>`;
    return problem.status === 404
      ? html`<header><h1>${arg}</h1></header><${EmptyState}><p>There is no such run. It may have been deleted, or belong to another namespace.</p><p><a href=${buildHref("runs")}>All runs</a></p><//>`
      : html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
  }
  const openDialog = (name, record = null, target = report) => (name === "approve" ? updateQuery({ tab: "questions" }) : setDialog({ name, record, target }));
  const tabs = buildTabs(report);
  const tab = tabs.some((one) => one.name === query.tab) ? query.tab : "timeline";
  const ActiveDialog = dialog ? DIALOGS[dialog.name] : null;
  return html`<div class="run-page">
    <${RunHeader} report=${report} caller=${caller} openDialog=${openDialog} />
    ${problem ? html`<${Note} tone="warn"><span role="status">${problem.message} What is shown may be old.</span><//>` : null}
    <${Tabs} tabs=${tabs} at=${tab} />
    <div id="tab" role="tabpanel" aria-labelledby="tab-${tab}">
      ${tab === "timeline" ? html`<${Timeline} report=${report} inFlight=${inFlight} caller=${caller} query=${query} openDialog=${openDialog} />` : null}
      ${tab === "conversation" ? html`<${Conversation} report=${report} answers=${answers} caller=${caller} />` : null}
      ${tab === "questions" ? html`<${RunApprovals} report=${report} caller=${caller} />` : null}
      ${tab === "plan" ? html`<${Plan} plan=${report.plan} />` : null}
      ${tab === "tree" ? html`<${RunTree} report=${report} />` : null}
      ${tab === "data" ? html`<${InputOutput} report=${report} />` : null}
      ${tab === "events" ? html`<${EventList} report=${report} eventCount=${eventCount} />` : null}
    </div>
    ${ActiveDialog ? html`<${ActiveDialog} report=${dialog.target.id === report.id ? report : dialog.target} record=${dialog.record} onClose=${() => setDialog(null)} />` : null}
  </div>`;
}

// Only tabs that have something to show.
function buildTabs(report) {
  const openCount = report.approvals.filter((one) => one.state === "open").length;
  const doneCount = report.plan.filter((one) => one.status === "done").length;
  return [
    { name: "timeline", label: "Timeline" },
    ...(report.is_agent ? [{ name: "conversation", label: "Conversation" }] : []),
    ...(report.approvals.length ? [{ name: "questions", label: "Approvals", count: openCount, tone: "warn" }] : []),
    ...(report.plan.length ? [{ name: "plan", label: "Plan", count: `${doneCount}/${report.plan.length}` }] : []),
    ...(report.related_runs.length || report.parent ? [{ name: "tree", label: "Tree", count: report.related_runs.length }] : []),
    { name: "data", label: "Input & output", count: report.pending_signals.length, tone: "warn" },
    { name: "events", label: "Events" },
  ];
}
