// The run tree as rows. Pure.

// Each run with its depth, parents first; a run whose parent is not in the tree is at the top.
export function buildTree(tree) {
  const known = new Set(tree.items.map((one) => one.id));
  const childrenByParent = new Map();
  for (const one of tree.items) {
    const parent = one.parent && known.has(one.parent) && one.id !== tree.root ? one.parent : "";
    childrenByParent.set(parent, [...(childrenByParent.get(parent) ?? []), one]);
  }
  const rows = [];
  const add = (one, depth) => {
    rows.push({ ...one, depth });
    for (const child of childrenByParent.get(one.id) ?? []) add(child, depth + 1);
  };
  for (const one of childrenByParent.get("") ?? []) add(one, 0);
  return rows;
}

// How many runs are in which state.
export function countStates(items) {
  const counts = {};
  for (const one of items) counts[one.state] = (counts[one.state] ?? 0) + 1;
  return counts;
}
