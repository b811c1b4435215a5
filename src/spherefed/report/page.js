// Values of figures: on hover, and with the arrow keys while a figure has the focus. Without scripts, the titles of the
// marks do the same on hover. A page that reloads itself keeps its position and its open parts.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);
  let shown = null;
  // Scrolling moves marks under a pointer that rests, and the browser reports that like a movement. A value that was
  // chosen with the keyboard stays until the pointer itself moves.
  let byKey = false, pointer = "";
  const rests = (event) => byKey && `${event.clientX},${event.clientY}` === pointer;
  addEventListener("pointermove", (event) => { pointer = `${event.clientX},${event.clientY}`; }, { passive: true });
  const hide = () => {
    if (shown) shown.classList.remove("on");
    shown = null;
    tip.classList.remove("on");
  };
  const show = (mark) => {
    hide();
    shown = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.value;
    tip.classList.add("on");
    move();
  };
  const move = () => {
    if (!shown) return;
    const box = shown.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = box.left + Math.min(box.width, 300) / 2 - own.width / 2;
    tip.style.left = Math.max(8, Math.min(left, innerWidth - own.width - 8)) + "px";
    const above = box.top - own.height - 8;
    tip.style.top = (above > 4 ? above : box.bottom + 8) + "px";
  };
  for (const card of document.querySelectorAll(".card")) {
    const marks = [...card.querySelectorAll(".spots > *")];
    for (const mark of marks) {
      const title = mark.querySelector("title");
      mark.dataset.value = title.textContent;
      title.remove();
    }
    if (!marks.length) continue;
    let index = -1;
    card.addEventListener("pointerover", (event) => {
      if (rests(event)) return;
      byKey = false;
      if (event.target.dataset && event.target.dataset.value) show(event.target);
      else hide();
    });
    card.addEventListener("pointerleave", (event) => { if (!rests(event)) hide(); });
    card.addEventListener("blur", hide);
    card.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      byKey = true;
      index = (index + step + marks.length) % marks.length;
      marks[index].scrollIntoView({ block: "nearest", inline: "nearest" });
      show(marks[index]);
    });
  }
  addEventListener("scroll", move, { passive: true });
  if (document.querySelector('meta[http-equiv="refresh"]')) {
    const key = "spherefed " + location.pathname;
    const parts = [...document.querySelectorAll("details")];
    try {
      const kept = JSON.parse(sessionStorage.getItem(key) || "null");
      if (kept) {
        for (const part of parts) part.open = kept.open.includes(part.querySelector("summary").textContent);
        scrollTo(0, kept.top);
      }
      addEventListener("pagehide", () => {
        const open = parts.filter((part) => part.open).map((part) => part.querySelector("summary").textContent);
        sessionStorage.setItem(key, JSON.stringify({ top: scrollY, open }));
      });
    } catch (error) {
      // Without storage the page only starts at the top again.
    }
  }
})();
