// What pages are written with: Preact's elements, written as they look (htm), and its hooks. Whatever stands in ${} is
// put into the page as text; there is no way here to put markup.

import { createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { createContext, render };
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
