// What the caller's key allows. The server decides; checking here keeps people from filling in a form in vain.

import { html } from "./html.js";
import { ActionButton } from "./components.js";

const GRANTED_BY = { read: ["read", "operate", "admin"], submit: ["submit", "admin"], operate: ["operate", "admin"], admin: ["admin"] };

// A text about the scope that the caller does not have; "" if the scope is granted, or the caller is not known yet.
export const describeMissingScope = (caller, scope) =>
  !caller || GRANTED_BY[scope].some((one) => caller.scopes.includes(one)) ? "" : `Your key lacks the scope “${scope}”.`;

// A button that needs a scope: without the scope, it is disabled, and its title says why.
export function ScopedButton({ caller, scope, disabled = false, title, tone = "", ...more }) {
  const missingScope = describeMissingScope(caller, scope);
  return html`<button type="button" class=${tone} disabled=${disabled || Boolean(missingScope)} title=${missingScope || title} ...${more} />`;
}
export function ScopedActionButton({ caller, scope, disabled = false, title, ...more }) {
  const missingScope = describeMissingScope(caller, scope);
  return html`<${ActionButton} disabled=${disabled || Boolean(missingScope)} title=${missingScope || title} ...${more} />`;
}

// The same as text, once on each page: phones show no titles of buttons.
export function ScopeNote({ caller, scope, hint }) {
  const missingScope = describeMissingScope(caller, scope);
  return missingScope ? html`<p class="faint">${missingScope} ${hint}</p>` : null;
}
