// Light, dark, or as the system has it. The choice is kept in this browser.
import { byId, change, say } from "./dom.js";

const CHOICES = ["automatic", "dark", "light"];
const KEY = "headrace-theme";

function kept() {
  const found = localStorage.getItem(KEY);
  return CHOICES.includes(found) ? found : CHOICES[0];
}

function apply(choice) {
  change(document.documentElement, { "data-theme": choice === CHOICES[0] ? null : choice });
  say(byId("theme"), `Theme: ${choice}`);
}

export function startTheme() {
  apply(kept());
  byId("theme").addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(kept()) + 1) % CHOICES.length];
    localStorage.setItem(KEY, next);
    apply(next);
  });
}
