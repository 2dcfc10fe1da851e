// Making and changing elements. Text goes in as text only, and nothing is touched that stays.

export const byId = (id) => document.getElementById(id);

/** Make an element: attributes by name, `on` for listeners, false and null left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  change(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Make an element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set attributes that differ. */
export function change(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === false || value === null || value === undefined) {
      element.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (element.getAttribute(name) !== text) element.setAttribute(name, text);
    }
  }
}

/** Set an element's text if it differs. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show or hide. */
export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/**
 * Make the children of `parent` those of `items`, in their order: what has the same key stays.
 * `create(item)` returns an element with a function `update`, which is then called with the item.
 */
export function each(parent, items, key, create) {
  const known = new Map();
  for (const child of parent.children) known.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  const counts = new Map();
  for (const item of items) {
    const count = (counts.get(key(item)) ?? 0) + 1;
    counts.set(key(item), count);
    const name = count === 1 ? key(item) : `${key(item)} (${count})`;
    let child = known.get(name);
    if (child) {
      known.delete(name);
    } else {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    child.update?.(item);
  }
  for (const child of known.values()) child.remove();
}

/** Give an element the function that brings it up to date. */
export function updating(element, update) {
  element.update = update;
  return element;
}

/** Tell a screen reader, once. */
export function announce(text) {
  say(byId("announce"), text);
}
