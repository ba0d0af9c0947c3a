// The building blocks of pages: Preact's elements, written as markup (htm), and its hooks. Everything in ${} becomes text
// on the page; markup cannot be inserted.

import { createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { createContext, render };
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
