// The runs that belong together, as a tree. Pure.

// Each with its depth, those above first; what was started by a run that is not told of stands at the top.
export function treeOf(family) {
  const known = new Set(family.items.map((one) => one.id));
  const below = new Map();
  for (const one of family.items) {
    const above = one.parent && known.has(one.parent) && one.id !== family.root ? one.parent : "";
    below.set(above, [...(below.get(above) ?? []), one]);
  }
  const rows = [];
  const add = (one, depth) => {
    rows.push({ ...one, depth });
    for (const child of below.get(one.id) ?? []) add(child, depth + 1);
  };
  for (const one of below.get("") ?? []) add(one, 0);
  return rows;
}

// Everything together: how many are in which state.
export function statesOf(items) {
  const counted = {};
  for (const one of items) counted[one.state] = (counted[one.state] ?? 0) + 1;
  return counted;
}
