// What the reader's key may do. The server decides; this is so that nobody fills in a form in vain.

import { html } from "./html.js";
import { Act } from "./components.js";

const OPENED_BY = { read: ["read", "operate", "admin"], submit: ["submit", "admin"], operate: ["operate", "admin"], admin: ["admin"] };

// Why the reader may not do what asks for a scope; "": they may, as far as is known.
export const lacks = (who, scope) =>
  !who || OPENED_BY[scope].some((one) => who.scopes.includes(one)) ? "" : `Your key lacks the scope “${scope}”.`;

// A button that needs a scope: without it, it is off, and says why.
export function ScopedButton({ who, scope, disabled = false, title, tone = "", ...more }) {
  const why = lacks(who, scope);
  return html`<button type="button" class=${tone} disabled=${disabled || Boolean(why)} title=${why || title} ...${more} />`;
}
export function ScopedAct({ who, scope, disabled = false, title, ...more }) {
  const why = lacks(who, scope);
  return html`<${Act} disabled=${disabled || Boolean(why)} title=${why || title} ...${more} />`;
}

// The same in words, once for a page: a phone shows no titles of buttons.
export function ScopeNote({ who, scope, what }) {
  const why = lacks(who, scope);
  return why ? html`<p class="faint">${why} ${what}</p>` : null;
}
