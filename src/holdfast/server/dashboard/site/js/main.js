// The frame around every page: navigation, who is reading, and which page it is.

import { html, render, useEffect, useState } from "./html.js";
import { get, isRefused, key } from "./api.js";
import { startChanges, useChanges } from "./data.js";
import { count } from "./format.js";
import { shortcuts, useKeys } from "./shortcuts.js";
import { Dialog, Toasts } from "./components.js";
import { go, href, useRoute } from "./router.js";
import { PAGES } from "./pages/index.js";
import { lacks } from "./scopes.js";

const THEMES = { "": "as the system", light: "light", dark: "dark" };
const AGAIN = 2000; // milliseconds after which a server that could not say who is reading is asked again

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("holdfast-theme") ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("holdfast-theme", theme);
  }, [theme]);
  const next = () => setTheme(Object.keys(THEMES)[(Object.keys(THEMES).indexOf(theme) + 1) % 3]);
  return [theme, next];
}

function useReader() {
  const [told, setTold] = useState({ refused: isRefused(), who: null });
  useEffect(() => {
    let number = 0;
    let timer = 0;
    const look = () => {
      clearTimeout(timer);
      const mine = ++number;
      const tell = (who) => mine === number && setTold({ refused: isRefused(), who });
      get("/v1/whoami").then(tell, () => {
        tell(null);
        if (mine === number && !isRefused()) timer = setTimeout(look, AGAIN);
      });
    };
    let wasRefused = isRefused();
    const stop = key.onChange(() => {
      if (isRefused() && wasRefused) return; // it is known already, and asking again would only count against us
      wasRefused = isRefused();
      look();
    });
    look();
    return () => {
      stop();
      clearTimeout(timer);
      number += 1;
    };
  }, []);
  return told;
}

function SignIn() {
  const [typed, setTyped] = useState("");
  // A key that was good until now is good no more.
  const [problem, setProblem] = useState(key.get() ? new Error("The key is not known here, was revoked, or has expired.") : null);
  const open = (token) => {
    setProblem(null);
    key.set(token);
    get("/v1/whoami").catch(setProblem); // one that is known opens the page
  };
  const submit = (event) => {
    event.preventDefault();
    open(typed.trim());
  };
  return html`<main class="sign-in">
    <img src="/ui/icon.svg" alt="" width="44" height="44" />
    <h1>Holdfast</h1>
    <p>This server needs an API key. <code>holdfast keys create</code> makes one, for whoever may open its store.</p>
    ${problem ? html`<div class="note bad" role="alert">${problem.message}</div>` : null}
    <form onSubmit=${submit}>
      <label class="field">API key
        <input type="password" autocomplete="off" required value=${typed} onInput=${(event) => setTyped(event.target.value)} placeholder="hf_…" />
        <span class="hint">It is kept in this tab, until the tab is closed.</span>
      </label>
      <div class="does"><button class="main">Open</button>${key.get() ? html`<button type="button" onClick=${() => open("")}>Without a key</button>` : null}</div>
    </form>
  </main>`;
}

function Side({ page, who, theme, nextTheme }) {
  const { overview, state } = useChanges();
  return html`<aside class="side">
    <a class="brand" href="#/runs" aria-label="Holdfast"><img src="/ui/icon.svg" alt="" /><span>Holdfast</span></a>
    <nav aria-label="pages">
      ${PAGES.filter((one) => one.label && !(one.scope && (!who || lacks(who, one.scope)))).map((one) => {
        const number = overview && one.count ? one.count(overview) : 0;
        return html`<a key=${one.page} href=${href(one.page)} aria-current=${one.page === page ? "page" : undefined}>
          ${one.label}${number ? html`<span class="count ${one.tone ?? ""}">${count(number)}</span>` : null}
        </a>`;
      })}
    </nav>
    <div class="below">
      <span class="live ${state}" role="status">${state === "live" ? "live" : "not connected"}</span>
      ${who && who.namespace ? html`<span class="faint" title="whose runs these are">${who.namespace}</span>` : null}
      <button class="plain" onClick=${nextTheme} aria-label="theme: ${THEMES[theme]}; change it">◐ ${THEMES[theme]}</button>
      ${key.get() ? html`<button class="plain" onClick=${() => key.set("")}>Forget the key</button>` : null}
    </div>
  </aside>`;
}

function Help({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    <dl>${shortcuts().map((one) => html`<dt><kbd>${one.keys}</kbd></dt><dd>${one.words}</dd>`)}</dl>
    <div class="does"><button onClick=${onClose}>Close</button></div>
  <//>`;
}

function App() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const [help, setHelp] = useState(false);
  const { refused, who } = useReader();
  useKeys({
    "?": ["what the keys do", () => setHelp(true)],
    ...Object.fromEntries(PAGES.filter((one) => one.key).map((one) => [`g ${one.key}`, [`go to ${one.label.toLowerCase()}`, () => go(one.page)]])),
  });
  const found = PAGES.find((one) => one.page === route.page && Boolean(one.takesArg) === Boolean(route.arg)) ?? PAGES[0];
  useEffect(() => {
    document.title = `${route.arg || found.label} · Holdfast`;
    document.getElementById("page")?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [route.page, route.arg]);
  if (refused) return html`<${SignIn} />`;
  const Page = found.component;
  return html`<a class="skip" href="#page" onClick=${(event) => {
    event.preventDefault();
    document.getElementById("page").focus();
  }}>Skip to the page</a>
  <div class="frame">
    <${Side} page=${found.page} who=${who} theme=${theme} nextTheme=${nextTheme} />
    <main class="page" id="page" tabindex="-1"><${Page} key=${`${route.page}/${route.arg}`} arg=${route.arg} query=${route.query} who=${who} /></main>
  </div>
  ${help ? html`<${Help} onClose=${() => setHelp(false)} />` : null}
  <${Toasts} />`;
}

startChanges();
render(html`<${App} />`, document.getElementById("app"));
