// All pages, in the order of the navigation. A page with `hasArg` is about one thing, and is not in the navigation.
//   count: the number next to its name, from the overview.
//   scope: without this scope, the page is not in the navigation.

import { RunsPage } from "./runs.js";
import { RunPage } from "./run.js";
import { ApprovalsPage } from "./approvals.js";
import { AgentsPage } from "./agents.js";
import { CostsPage } from "./costs.js";
import { QueuesPage } from "./queues.js";
import { SchedulesPage } from "./schedules.js";
import { WorkersPage } from "./workers.js";
import { DeadRunsPage } from "./dead-runs.js";
import { KeysPage } from "./keys.js";
import { AuditPage } from "./audit.js";

export const PAGES = [
  { page: "runs", label: "Runs", key: "r", component: RunsPage },
  { page: "runs", hasArg: true, component: RunPage },
  { page: "approvals", label: "Approvals", key: "a", component: ApprovalsPage, count: (overview) => overview.approvals, tone: "warn" },
  { page: "agents", label: "Agents", key: "g", component: AgentsPage, count: (overview) => overview.disabled.length, tone: "bad" },
  { page: "costs", label: "Costs", key: "c", component: CostsPage },
  { page: "queues", label: "Queues", key: "q", component: QueuesPage },
  { page: "schedules", label: "Schedules", key: "s", component: SchedulesPage },
  { page: "workers", label: "Workers", key: "w", component: WorkersPage },
  { page: "dead", label: "Dead runs", key: "d", component: DeadRunsPage, count: (overview) => overview.dead, tone: "bad" },
  { page: "keys", label: "Keys", key: "k", component: KeysPage, scope: "admin" },
  { page: "audit", label: "Audit log", key: "l", component: AuditPage, scope: "admin" },
];
