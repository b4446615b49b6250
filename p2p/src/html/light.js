"use strict";
const picture = document.querySelector(".picture");
const parts = [...document.querySelectorAll("[data-at]")];
const chosen = () => document.querySelector(".pair:target");
const light = pair => {
  const { way = "", path = "", top = "" } = pair?.dataset ?? {};
  const at = path.split("|");
  if (picture) picture.dataset.way = way;
  for (const part of parts) {
    part.classList.toggle("lit", at.includes(part.dataset.at));
    part.classList.toggle("top", part.dataset.at === top);
  }
};
for (const event of ["mouseover", "focusin"])
  document.addEventListener(event, ({ target }) => light(target.closest("[data-path]") ?? chosen()));
for (const event of ["hashchange", "load"]) addEventListener(event, () => light(chosen()));
