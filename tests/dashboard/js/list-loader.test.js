import assert from "node:assert/strict";
import test from "node:test";
import { RunListLoader } from "../../../src/holdfast/server/dashboard/site/js/pages/runs/list-loader.js";

globalThis.sessionStorage = { getItem: () => null };

// Lets everything that is ready to continue do so.
async function turn() {
  for (let number = 0; number < 20; number += 1) await new Promise(setImmediate);
}

// A server with a list of runs, whose responses arrive when the test says so.
function fakeServer() {
  const runs = [];
  const requests = [];
  globalThis.fetch = (path) => new Promise((done, fail) => requests.push({ path, done, fail }));
  const page = (path) => {
    const query = new URLSearchParams(path.split("?")[1]);
    const from = query.get("cursor") ? runs.findIndex((one) => one.id === query.get("cursor")) + 1 : 0;
    const items = runs.slice(from, from + Number(query.get("limit")));
    return { items, next: from + items.length < runs.length ? items.at(-1).id : null, searched_until: null };
  };
  return {
    add: (id) => runs.unshift({ id, created_at: new Date(1e12 + 1000 * runs.length).toISOString() }),
    // Answers the oldest request with the current runs; the response arrives when the returned function is called.
    async answerNext() {
      await turn();
      const { path, done } = requests.shift();
      const text = JSON.stringify(page(path));
      return async () => {
        done(new Response(text));
        await turn();
      };
    },
    async failNext() {
      await turn();
      requests.shift().fail(new TypeError("fetch failed"));
      await turn();
    },
  };
}

const ids = (loader) => loader.state.rows.map((one) => one.id);

test("a change during the first request causes another one", async () => {
  const { add, answerNext } = fakeServer();
  add("old");
  const loader = new RunListLoader({}, () => false, () => {});
  loader.start();
  const deliver = await answerNext();
  add("new");
  loader.refresh();
  await deliver();
  assert.deepEqual(ids(loader), ["old"]);
  await (await answerNext())();
  assert.deepEqual(ids(loader), ["new", "old"]);
});

test("a list that could not be loaded is loaded with the next change", async () => {
  const { add, answerNext, failNext } = fakeServer();
  add("one");
  const loader = new RunListLoader({}, () => false, () => {});
  loader.start();
  await failNext();
  assert.match(loader.state.problem.message, /asked again/);
  loader.refresh();
  await (await answerNext())();
  assert.deepEqual([ids(loader), loader.state.problem, loader.state.isSearching], [["one"], null, false]);
});

test("older runs join the list without a gap, also if new ones come meanwhile", async () => {
  const { add, answerNext } = fakeServer();
  for (let number = 0; number < 60; number += 1) add(`r${number}`);
  const loader = new RunListLoader({}, () => false, () => {});
  loader.start();
  await (await answerNext())();
  assert.equal(ids(loader).length, 50);
  loader.loadOlder();
  const older = await answerNext();
  for (let number = 60; number < 70; number += 1) add(`r${number}`);
  loader.refresh();
  await (await answerNext())();
  await older();
  assert.deepEqual(ids(loader), Array.from({ length: 70 }, (_, index) => `r${69 - index}`));
});
