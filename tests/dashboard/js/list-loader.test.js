import assert from "node:assert/strict";
import test from "node:test";
import { Lister } from "../../../src/holdfast/server/dashboard/site/js/pages/runs/list-loader.js";

globalThis.sessionStorage = { getItem: () => null };

// Whatever can go on by itself has done so.
async function turn() {
  for (let number = 0; number < 20; number += 1) await new Promise(setImmediate);
}

// A list of runs as a server has it, whose answers arrive when the test says so.
function server() {
  const runs = [];
  const questions = [];
  globalThis.fetch = (path) => new Promise((done, fail) => questions.push({ path, done, fail }));
  const page = (path) => {
    const query = new URLSearchParams(path.split("?")[1]);
    const from = query.get("cursor") ? runs.findIndex((one) => one.id === query.get("cursor")) + 1 : 0;
    const items = runs.slice(from, from + Number(query.get("limit")));
    return { items, next: from + items.length < runs.length ? items.at(-1).id : null, searched_until: null };
  };
  return {
    add: (id) => runs.unshift({ id, created_at: new Date(1e12 + 1000 * runs.length).toISOString() }),
    // Answers the oldest question by what there is now; the answer arrives when the outcome is called.
    async answered() {
      await turn();
      const { path, done } = questions.shift();
      const text = JSON.stringify(page(path));
      return async () => {
        done(new Response(text));
        await turn();
      };
    },
    async fails() {
      await turn();
      questions.shift().fail(new TypeError("fetch failed"));
      await turn();
    },
  };
}

const ids = (lister) => lister.told.rows.map((one) => one.id);

test("what has changed while the list was asked for the first time is asked for behind it", async () => {
  const { add, answered } = server();
  add("old");
  const lister = new Lister({}, () => false, () => {});
  lister.begin();
  const arrives = await answered();
  add("new");
  lister.refresh();
  await arrives();
  assert.deepEqual(ids(lister), ["old"]);
  await (await answered())();
  assert.deepEqual(ids(lister), ["new", "old"]);
});

test("a list that could not be asked for is asked for when something is heard again", async () => {
  const { add, answered, fails } = server();
  add("one");
  const lister = new Lister({}, () => false, () => {});
  lister.begin();
  await fails();
  assert.match(lister.told.problem.message, /asked again/);
  lister.refresh();
  await (await answered())();
  assert.deepEqual([ids(lister), lister.told.problem, lister.told.looking], [["one"], null, false]);
});

test("older runs join the list without a gap, also if new ones come meanwhile", async () => {
  const { add, answered } = server();
  for (let number = 0; number < 60; number += 1) add(`r${number}`);
  const lister = new Lister({}, () => false, () => {});
  lister.begin();
  await (await answered())();
  assert.equal(ids(lister).length, 50);
  lister.older();
  const older = await answered();
  for (let number = 60; number < 70; number += 1) add(`r${number}`);
  lister.refresh();
  await (await answered())();
  await older();
  assert.deepEqual(ids(lister), Array.from({ length: 70 }, (_, index) => `r${69 - index}`));
});
