// Helpers that build elements.

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function inSecs(value) {
  return `${value.toFixed(2)}\u00a0s`;
}

// A name over a value, for a <dl>.
export function figure(name, value, unit) {
  const cell = element("div", "figure");
  const shown = element("dd", "", value);
  if (unit) shown.append(element("span", "unit", `\u00a0${unit}`));
  cell.append(element("dt", "", name), shown);
  return cell;
}

export function secsFigure(name, value) {
  return value == null ? figure(name, "–") : figure(name, value.toFixed(2), "s");
}

// Adds a name such as "anthropic:claude-haiku-4-5" to an element. A line may break before a part of
// three characters or more, and elsewhere only if the part does not fit.
export function breakable(into, name) {
  const parts = name.split(/(?<=[:/-])(?=[^:/-]{3})/);
  for (const part of parts) into.append(element("span", "part", part));
  return into;
}
