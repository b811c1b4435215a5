// Opens a page in Chromium and prints what it finds as one JSON object. Usage:
//   node inspect_page.mjs CHROMIUM PAGE WIDTH light|dark [screenshot.png]
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [, , executablePath, file, width, colorScheme, picture] = process.argv;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: Number(width), height: 900 }, colorScheme });
const page = await context.newPage();
const errors = [], requests = [];
page.on("console", (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()));
page.on("pageerror", (error) => errors.push(String(error)));
page.on("request", (request) => requests.push(request.url()));
const address = pathToFileURL(file).href;
// Time of the page's own thread on the processor: other processes of the machine do not count.
const session = await context.newCDPSession(page);
await session.send("Performance.enable", { timeDomain: "threadTicks" });
await page.goto(address, { waitUntil: "load" });
const { metrics } = await session.send("Performance.getMetrics");
const processor = metrics.find((each) => each.name === "TaskDuration").value;
const timing = await page.evaluate(() => {
  const [entry] = performance.getEntriesByType("navigation");
  return { load: entry.loadEventEnd, paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime };
});
const layout = await page.evaluate(() => ({
  overflow: document.documentElement.scrollWidth - innerWidth,
  figures: [...document.querySelectorAll("figure svg")].map((svg) => svg.getBoundingClientRect().width),
  hidden: [...document.querySelectorAll("details figure svg")].length,
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector(".card svg text")).fill,
  smallest: Math.min(...[...document.querySelectorAll(".card svg text")].map((t) => t.getBoundingClientRect().height).filter(Boolean)),
}));

// Hover over a mark of the first figure that has any: its value appears at once.
const mark = page.locator(".spots > *").first();
await mark.scrollIntoViewIfNeeded();
await mark.hover({ force: true });
const hover = { tip: await page.locator(".tip.on").textContent(), value: await mark.getAttribute("data-value") };

// Walk through the page with the keyboard, then through the values of a figure with the arrow keys.
await page.evaluate(() => { document.activeElement?.blur(); scrollTo(0, 0); });
const reached = [];
for (let i = 0; i < 300; i++) {
  await page.keyboard.press("Tab");
  const where = await page.evaluate(() => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    element.dataset.reached = "yes";
    return element.className || element.tagName.toLowerCase();
  });
  if (where === null) break;
  reached.push(where);
}
const unreached = await page.evaluate(() =>
  [...document.querySelectorAll(".card, .box, summary, nav a")]
    .filter((element) => element.checkVisibility() && !element.dataset.reached)
    .map((element) => element.outerHTML.slice(0, 120)));
// The pointer rests on the page meanwhile: what scrolls under it must not hide the value.
const card = page.locator(".card", { has: page.locator(".spots > *") }).first();
await card.focus();
const box = await card.boundingBox();
await page.mouse.move(box.x + box.width / 2, Math.max(1, Math.min(899, box.y + box.height / 2)));
await page.keyboard.press("ArrowRight");
await page.mouse.wheel(0, 40);
await page.waitForTimeout(300);
const first = await page.locator(".tip.on").textContent();
await page.keyboard.press("ArrowRight");
await page.waitForTimeout(300);
const second = await page.locator(".tip.on").textContent();
await page.keyboard.press("Escape");

// Accessibility, with everything opened. axe runs in the tool's world: the page's policy allows no other script.
await page.evaluate(() => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const { readFile } = await import("node:fs/promises");
await page.evaluate(await readFile(axe, "utf8"));
const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
const violations = found.violations.map((each) => ({
  id: each.id, impact: each.impact, nodes: each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)),
}));
if (picture) await page.screenshot({ path: picture, fullPage: true });

// Without scripts the page shows the same, and marks keep their titles.
const plain = await browser.newContext({ javaScriptEnabled: false, viewport: { width: Number(width), height: 900 } });
const still = await plain.newPage();
await still.goto(address);
const withoutScripts = { sections: await still.locator("section h2").count(), titles: await still.locator(".spots title").count() };
await browser.close();
console.log(JSON.stringify({
  errors, requests, address, processor, timing, layout, hover, reached, unreached, keys: [first, second], violations, withoutScripts,
}));
