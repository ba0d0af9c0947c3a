// What the reader's key may do. The server decides; this is so that nobody fills in a form in vain.

import { html } from "./html.js";
import { ActionButton } from "./components.js";

const GRANTED_BY = { read: ["read", "operate", "admin"], submit: ["submit", "admin"], operate: ["operate", "admin"], admin: ["admin"] };

// Why the reader may not do what asks for a scope; "": they may, as far as is known.
export const describeMissingScope = (caller, scope) =>
  !caller || GRANTED_BY[scope].some((one) => caller.scopes.includes(one)) ? "" : `Your key lacks the scope “${scope}”.`;

// A button that needs a scope: without it, it is off, and says why.
export function ScopedButton({ caller, scope, disabled = false, title, tone = "", ...more }) {
  const missingScope = describeMissingScope(caller, scope);
  return html`<button type="button" class=${tone} disabled=${disabled || Boolean(missingScope)} title=${missingScope || title} ...${more} />`;
}
export function ScopedActionButton({ caller, scope, disabled = false, title, ...more }) {
  const missingScope = describeMissingScope(caller, scope);
  return html`<${ActionButton} disabled=${disabled || Boolean(missingScope)} title=${missingScope || title} ...${more} />`;
}

// The same in words, once for a page: a phone shows no titles of buttons.
export function ScopeNote({ caller, scope, hint }) {
  const missingScope = describeMissingScope(caller, scope);
  return missingScope ? html`<p class="faint">${missingScope} ${hint}</p>` : null;
}
